"""`lab_training.py STEPS METHOD`: trains so many steps with it, and prints what stats() says was sent and received."""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import terngrad

NUM_PARAMETERS = 1_000_000


def main(num_steps: int, method: str) -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(NUM_PARAMETERS // 1000, 1000, bias=False))
    handle = terngrad.attach(model, method)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(num_steps):
        loss = model(torch.randn(4, NUM_PARAMETERS // 1000, generator=generator)).square().mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    stats = handle.stats()
    print(json.dumps([stats["bytes_sent"], stats["bytes_received"]]), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
