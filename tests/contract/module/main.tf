# A provider that makes nothing: it fills the contract as its options say.

terraform {
  required_version = ">= 1.6"
}

variable "options" {
  type = object({
    missing     = optional(number, 0)
    first_role  = optional(string, "head")
    kind        = optional(string, "machine")
    with_proxy  = optional(bool, false)
    port_a_word = optional(bool, false)
  })
  default = {}
}

locals {
  nodes = [for index in range(var.nodes - var.options.missing) : {
    id              = index + 100
    name            = "node${index}"
    role            = index == 0 ? var.options.first_role : "worker"
    kind            = var.options.kind
    address         = "203.0.113.${index}"
    private_address = "10.0.0.${index}"
    ssh_user        = "hvdctl"
    ssh_port        = var.options.port_a_word ? "22" : 22
    ssh_proxy       = var.options.with_proxy ? "gate.example.org" : null
    slots           = var.slots
    gpus            = var.gpus
    extra           = "is not given on"
  }]
}
