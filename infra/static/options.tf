variable "options" {
  description = "The machines, the head first, and how they are logged in to."
  type = object({
    hosts = optional(list(object({
      address         = string
      user            = string
      port            = optional(number, 22)
      private_address = string
      mac             = optional(string)
      proxy           = optional(string)
      host_key        = list(string)
    })), [])
    key      = optional(string)
    firewall = optional(bool, true)
    delay    = optional(string)
  })
  default = {}
  validation {
    condition     = alltrue([for host in var.options.hosts : can(cidrnetmask("${host.private_address}/32"))])
    error_message = "options: private_address of a host is an IPv4 address such as 192.168.0.1."
  }
  validation {
    condition     = alltrue([for host in var.options.hosts : length(host.host_key) > 0])
    error_message = "options: host_key of a host has at least one key, written as type and base64."
  }
}
