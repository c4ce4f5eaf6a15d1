variable "options" {
  description = "Where GPULab is, who asks, and which workers will do."
  type = object({
    server             = optional(string)
    certificate        = optional(string)
    passphrase_file    = optional(string)
    server_certificate = optional(string)
    project            = optional(string)
    cluster            = optional(number)
    worker             = optional(string)
    gpu_model          = optional(list(string), [])
    gpu_memory         = optional(number)
    min_cuda           = optional(number)
    storage            = optional(string)
    min_duration       = optional(string, "1 hour")
    max_duration       = optional(string, "12 hours")
    reservations       = optional(list(string), [])
    wait               = optional(number, 900)
    when_short         = optional(string, "keep")
    bastion            = optional(string, "auto")
    bastion_key        = optional(string)
    known_hosts        = optional(string)
  })
  default = {}
  validation {
    condition     = contains(["keep", "cancel"], var.options.when_short)
    error_message = "options: when_short is keep or cancel."
  }
}
