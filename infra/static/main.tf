# Machines that are there already: nothing is made, the first hosts become the nodes.

locals {
  hosts = slice(var.options.hosts, 0, min(var.nodes, length(var.options.hosts)))

  nodes = [for index, host in local.hosts : {
    # A machine that was installed anew has another host key.
    id              = "static/${host.address}:${host.port}/${substr(sha256(host.host_key[0]), 0, 12)}"
    name            = "node${index}"
    role            = index == 0 ? "head" : "worker"
    kind            = "machine"
    address         = host.address
    private_address = host.private_address
    ssh_user        = host.user
    ssh_port        = host.port
    ssh_proxy       = host.proxy
    slots           = var.slots
    gpus            = var.gpus
  }]
}

# Never made: where there are too few hosts, its precondition says so.
resource "terraform_data" "enough_hosts" {
  count = length(var.options.hosts) < var.nodes ? 1 : 0
  lifecycle {
    precondition {
      condition     = length(var.options.hosts) >= var.nodes
      error_message = "options: ${length(var.options.hosts)} hosts for ${var.nodes} nodes; add hosts or ask for fewer nodes."
    }
  }
}
