"""Rank 1 dies with exit code 7; the others would wait for long."""

import os
import sys
import time

rank = os.environ.get("HOROVOD_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("RANK")
print("here is rank", rank, flush=True)
if rank == "1":
    print("rank 1 gives up", flush=True)
    sys.exit(7)
time.sleep(600)
