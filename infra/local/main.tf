# Containers on this machine's Docker engine, one a node, on a network and with a volume of the cluster's own.

locals {
  names     = [for index in range(var.nodes) : "node${index}"]
  own_share = var.share == "auto"

  nodes = [for index, node in hvd_container_node.node : {
    id              = node.id
    name            = node.name
    role            = index == 0 ? "head" : "worker"
    kind            = "container"
    address         = node.address
    private_address = node.address
    ssh_user        = "hvd"
    ssh_port        = 2222
    ssh_proxy       = null
    slots           = var.slots
    gpus            = var.gpus
  }]
}

resource "hvd_volume" "share" {
  count   = local.own_share ? 1 : 0
  cluster = var.cluster
  name    = "share"
  labels  = var.labels
}

resource "hvd_container_node" "node" {
  count                = var.nodes
  cluster              = var.cluster
  name                 = local.names[count.index]
  image                = var.image
  network              = hvd_network.cluster.id
  share                = local.own_share ? hvd_volume.share[0].id : var.share
  cpus                 = var.cpus
  memory               = var.memory
  gpus                 = var.gpus
  rate                 = var.rate
  ssh_public_key       = var.ssh_public_key
  ssh_private_key      = var.ssh_private_key_file
  ssh_host_public_key  = var.ssh_host_keys[local.names[count.index]].public_key
  ssh_host_private_key = var.ssh_host_keys[local.names[count.index]].private_key_file
  labels               = var.labels
}
