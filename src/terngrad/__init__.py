"""terngrad: data-parallel PyTorch training over slow networks, with gradients sent as ternary codes."""
