"""Writes a line whenever a file `go-N` appears beside it."""

import time
from pathlib import Path

print("ticker ready", flush=True)
for number in range(1, 4):
    while not Path(f"go-{number}").exists():
        time.sleep(0.05)
    print(f"tick {number}", flush=True)
