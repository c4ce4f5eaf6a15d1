"""What Terraform, or hvdctl with `--dev`, starts."""

import sys

from tf.runner import run_provider

from hvdctl.gpulab import login
from hvdctl.tfprovider.provider import HvdProvider

# What it starts, such as guests that outlive it, need not know.
login.hide()
run_provider(HvdProvider(), sys.argv)
