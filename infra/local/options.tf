# There is nothing to set.
variable "options" {
  description = "Settings of the provider's own."
  type        = object({})
  default     = {}
}
