"""What Terraform, or hvdctl with `--dev`, starts."""

import sys

from tf.runner import run_provider

from hvdctl.tfprovider.provider import HvdProvider

run_provider(HvdProvider(), sys.argv)
