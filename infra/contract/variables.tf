# What every provider takes. Linked into each provider's folder.

variable "cluster" {
  description = "Name of the cluster, used in the name of everything that is made."
  type        = string
  validation {
    condition     = can(regex("^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", var.cluster))
    error_message = "cluster: use 1 to 32 lower-case letters, digits and hyphens."
  }
}

variable "nodes" {
  description = "Number of nodes; the first one is the head."
  type        = number
  validation {
    condition     = var.nodes >= 1 && var.nodes == floor(var.nodes)
    error_message = "nodes: write a whole number from 1."
  }
}

variable "slots" {
  description = "Ranks that a node takes."
  type        = number
  default     = 1
  validation {
    condition     = var.slots >= 1 && var.slots == floor(var.slots)
    error_message = "slots: write a whole number from 1."
  }
}

variable "cpus" {
  description = "CPUs of a node; null: no limit."
  type        = number
  default     = null
}

variable "memory" {
  description = "Memory of a node in bytes; null: no limit."
  type        = number
  default     = null
}

variable "gpus" {
  description = "GPUs of a node."
  type        = number
  default     = 0
  validation {
    condition     = var.gpus >= 0 && var.gpus == floor(var.gpus)
    error_message = "gpus: write a whole number from 0."
  }
}

variable "rate" {
  description = "Link rate of a node in bits per second, both directions; null: not limited."
  type        = number
  default     = null
  validation {
    condition     = var.rate == null || try(var.rate > 0, false)
    error_message = "rate: write bits per second, such as 1000000000, or null."
  }
}

variable "image" {
  description = "Image that the nodes run."
  type        = string
}

variable "share" {
  description = "What is at /shared: auto for the provider's own way, or the absolute path of a folder."
  type        = string
  default     = "auto"
  validation {
    condition     = var.share == "auto" || startswith(var.share, "/")
    error_message = "share: write auto or an absolute path."
  }
}

variable "ssh_public_key" {
  description = "Public key that may log in on every node."
  type        = string
}

variable "ssh_private_key_file" {
  description = "File of its private half, with which the nodes reach each other; its content stays out of the state."
  type        = string
}

variable "ssh_host_keys" {
  description = "Host key of each node by its name; the private half stays in its file, out of Terraform's state."
  type        = map(object({ public_key = string, private_key_file = string }))
}

variable "labels" {
  description = "Labels for everything that is made, among them the owner's mark."
  type        = map(string)
  default     = {}
}
