"""terraform-provider-hvd: networks, volumes and container nodes on a Docker engine, as real Terraform resources."""

SOURCE = "hvdctl.local/hvdctl/hvd"
VERSION = "0.1.0"
