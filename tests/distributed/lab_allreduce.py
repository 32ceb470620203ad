"""A sum over all hosts, by torch.distributed as the lab's environment sets it up."""

from __future__ import annotations

import torch
import torch.distributed as dist

if __name__ == "__main__":
    dist.init_process_group("gloo")
    values = torch.full((250_000,), 1.0 + dist.get_rank())
    dist.all_reduce(values)
    print(f"sum {values.unique().tolist()}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
