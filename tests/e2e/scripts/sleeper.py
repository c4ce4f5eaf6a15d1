"""Says that it sleeps, then sleeps; with the argument `stubborn` it takes no hint to end."""

import os
import signal
import sys
import time

if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
rank = os.environ.get("HOROVOD_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("RANK")
print(f"sleeping on {os.uname().nodename} as {rank}", flush=True)
time.sleep(600)
