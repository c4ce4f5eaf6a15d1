variable "options" {
  description = "Settings of the provider's own; toolkit/hvdctl/sites/openstack.py describes and checks each."
  type = object({
    cloud            = optional(string)
    region           = optional(string)
    zone             = optional(string)
    image            = optional(string)
    flavor           = optional(string)
    disk             = optional(number)
    external_network = optional(string)
    dns              = optional(list(string), [])
    server_group     = optional(string, "soft-anti-affinity")
    admit_anyone     = optional(bool, false)
    admit            = optional(list(string), [])
    ttl              = optional(string)
    firewall         = optional(bool, true)
    delay            = optional(string)
  })
  default = {}
  validation {
    condition     = alltrue([for range in var.options.admit : can(cidrhost(range, 0))])
    error_message = "options: admit takes address ranges such as 203.0.113.7/32."
  }
  validation {
    condition     = contains(["affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity", "none"], var.options.server_group)
    error_message = "options: server_group takes affinity, anti-affinity, soft-affinity, soft-anti-affinity or none."
  }
  validation {
    condition     = var.options.ttl == null || can(timeadd("2000-01-01T00:00:00Z", var.options.ttl))
    error_message = "options: ttl takes a time such as 8h."
  }
}
