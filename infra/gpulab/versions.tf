terraform {
  required_version = ">= 1.5"
  required_providers {
    hvd = {
      source  = "hvdctl.local/hvdctl/hvd"
      version = "~> 0.1"
    }
  }
}
