"""hvdctl: from a short spec to a running, measured Horovod cluster and back to nothing."""

__version__ = "0.1.0"
