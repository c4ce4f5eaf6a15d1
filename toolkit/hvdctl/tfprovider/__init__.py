"""terraform-provider-hvd: containers, virtual machines and GPULab jobs, as real Terraform resources."""

SOURCE = "hvdctl.local/hvdctl/hvd"
VERSION = "0.1.0"
