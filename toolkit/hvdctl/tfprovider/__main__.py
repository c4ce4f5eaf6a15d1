"""What Terraform, or hvdctl with `--dev`, starts."""

import os
import signal
import sys

from hvdctl.gpulab import login
from hvdctl.tfprovider import serve

# What it starts, such as guests that outlive it, need not know.
login.hide()
# Not left to the kernel: its socket lies in a temporary folder that goes with an orderly end.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
try:
    serve.run(sys.argv)
except SystemExit:
    os._exit(0)  # calls that are under way are not waited for
