variable "options" {
  description = "Settings of the provider's own; toolkit/hvdctl/sites/aws.py describes and checks each."
  type = object({
    region          = optional(string, "eu-west-1")
    zone            = optional(string)
    profile         = optional(string)
    instance_type   = optional(string, "m6i.large")
    spot            = optional(bool, false)
    placement_group = optional(bool, true)
    image_owner     = optional(string, "136693071363")
    image_name      = optional(string, "debian-12-amd64-*")
    disk            = optional(number, 53687091200)
    admit_anyone    = optional(bool, false)
    admit           = optional(list(string), [])
    ttl             = optional(string)
    firewall        = optional(bool, true)
    delay           = optional(string)
  })
  default = {}
  validation {
    condition     = alltrue([for range in var.options.admit : can(cidrhost(range, 0))])
    error_message = "options: admit takes address ranges such as 203.0.113.7/32."
  }
  validation {
    condition     = var.options.ttl == null || can(timeadd("2000-01-01T00:00:00Z", var.options.ttl))
    error_message = "options: ttl takes a time such as 8h."
  }
}
