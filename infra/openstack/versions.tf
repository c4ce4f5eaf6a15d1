terraform {
  required_version = ">= 1.5"
  required_providers {
    openstack = {
      source  = "terraform-provider-openstack/openstack"
      version = "~> 3.0"
    }
  }
}

# Credentials come from clouds.yaml, by the name of the cloud, or from OS_* variables.
provider "openstack" {
  cloud       = var.options.cloud
  region      = var.options.region
  max_retries = 6
}
