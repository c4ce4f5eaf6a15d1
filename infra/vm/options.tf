variable "options" {
  description = "Settings of the provider's own."
  type = object({
    image    = optional(string, "auto")
    disk     = optional(number, 21474836480)
    subnet   = optional(string, "10.87.0.0/16")
    internet = optional(bool, true)
    firewall = optional(bool, true)
    delay    = optional(string)
  })
  default = {}
  validation {
    condition     = can(cidrhost(var.options.subnet, 1))
    error_message = "options: subnet is a range of addresses such as 10.87.0.0/16."
  }
}
