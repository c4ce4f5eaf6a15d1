# Jobs of GPULab, one a node: each is one container on one worker host, with the project's storage as its share.

locals {
  names   = [for index in range(var.nodes) : "node${index}"]
  bastion = var.options.bastion

  nodes = [for index, job in hvd_gpulab_job.node : {
    id              = job.id
    name            = job.name
    role            = index == 0 ? "head" : "worker"
    kind            = "container"
    address         = job.address
    private_address = job.private_address
    ssh_user        = "hvd"
    ssh_port        = job.ssh_port
    ssh_proxy       = local.bastion == "auto" ? job.ssh_proxy : local.bastion == "none" ? null : local.bastion
    slots           = var.slots
    gpus            = var.gpus
    host_key        = job.host_key
    user_key        = job.user_key
  }]
}

provider "hvd" {
  gpulab_server             = var.options.server
  gpulab_certificate        = var.options.certificate
  gpulab_server_certificate = var.options.server_certificate
  gpulab_passphrase_file    = var.options.passphrase_file
  gpulab_wait               = var.options.wait
}

# A node makes its own keys and tells their public halves: none of the contract's private keys goes to the service.
resource "hvd_gpulab_job" "node" {
  count          = var.nodes
  cluster        = var.cluster
  name           = local.names[count.index]
  project        = var.options.project
  image          = var.image
  slots          = var.slots
  gpus           = var.gpus
  cpus           = var.cpus
  memory         = var.memory
  storage        = var.share == "auto" ? var.options.storage : var.share
  ssh_public_key = var.ssh_public_key
  gpu_model      = var.options.gpu_model
  gpu_memory     = var.options.gpu_memory
  min_cuda       = var.options.min_cuda
  cluster_id     = var.options.cluster
  worker         = var.options.worker
  min_duration   = var.options.min_duration
  max_duration   = var.options.max_duration
  reservations   = var.options.reservations
  labels         = var.labels
}
