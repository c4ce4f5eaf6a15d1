terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 5.40"
    }
  }
}

# Credentials come from the environment or from a profile; AWS_ENDPOINT_URL, where it is set, is asked in place of AWS.
provider "aws" {
  region              = try(local.origin[0].region, var.options.region)
  profile             = var.options.profile
  max_retries         = 6
  allowed_account_ids = try([local.origin[0].account], null)
}
