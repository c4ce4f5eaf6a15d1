"""Sums the ranks over all ranks, with whichever launcher started it."""

import os
import sys

import torch

if "TORCHELASTIC_RUN_ID" in os.environ:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    total = torch.ones(4) * (rank + 1)
    dist.all_reduce(total)
    dist.destroy_process_group()
    backend = "torch"
else:
    import horovod.torch as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    total = hvd.allreduce(torch.ones(4) * (rank + 1), op=hvd.Sum)
    backend = "mpi" if hvd.mpi_enabled() else "gloo"
print(f"sum {total[0].item():g} of {size} by {backend}", *sys.argv[1:], sep="|", flush=True)
