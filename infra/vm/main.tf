# QEMU virtual machines on this machine: SSH on the loopback, a virtual switch between them.

locals {
  names    = [for index in range(var.nodes) : "node${index}"]
  user     = "hvdctl"
  prefix   = split("/", var.options.subnet)[1]
  inside   = [for index in range(var.nodes) : cidrhost(var.options.subnet, index + 1)]
  two_gibi = 2 * 1024 * 1024 * 1024

  nodes = [for index, machine in hvd_virtual_machine.node : {
    id              = machine.id
    name            = machine.name
    role            = index == 0 ? "head" : "worker"
    kind            = "machine"
    address         = "127.0.0.1"
    private_address = local.inside[index]
    ssh_user        = local.user
    ssh_port        = machine.ssh_port
    ssh_proxy       = null
    slots           = var.slots
    gpus            = var.gpus
  }]
}

resource "hvd_virtual_machine" "node" {
  count           = var.nodes
  cluster         = var.cluster
  name            = local.names[count.index]
  image           = var.options.image
  switch          = hvd_switch.cluster.id
  socket          = hvd_switch.cluster.socket
  cpus            = coalesce(var.cpus, 2)
  memory          = coalesce(var.memory, local.two_gibi)
  disk            = var.options.disk
  private_address = "${local.inside[count.index]}/${local.prefix}"
  internet        = var.options.internet
  labels          = var.labels
  user_data = templatefile("${path.module}/user-data.yaml.tftpl", {
    name            = local.names[count.index]
    user            = local.user
    public_key      = var.ssh_public_key
    host_public_key = var.ssh_host_keys[local.names[count.index]].public_key
    # Read by the resource itself, so that the state holds the path alone.
    host_private_key = "@file:${var.ssh_host_keys[local.names[count.index]].private_key_file}"
  })
  lifecycle {
    # A machine has the image that its disk is based on: another one would cost what is on the disk.
    ignore_changes = [image, user_data]
  }
}
