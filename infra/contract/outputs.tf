# What every provider gives. Linked into each provider's folder, which fills `local.nodes`.

output "nodes" {
  description = "The nodes in order, the head first. `id` changes when a node is made anew."
  value = [for node in local.nodes : {
    id              = tostring(node.id)
    name            = tostring(node.name)
    role            = tostring(node.role)
    kind            = tostring(node.kind)
    address         = tostring(node.address)
    private_address = tostring(node.private_address)
    ssh_user        = tostring(node.ssh_user)
    ssh_port        = tonumber(node.ssh_port)
    ssh_proxy       = try(tostring(node.ssh_proxy), null)
    slots           = tonumber(node.slots)
    gpus            = tonumber(node.gpus)
    # Public keys of a node that made its own; null where it was given those of the contract.
    host_key = try(tostring(node.host_key), null)
    user_key = try(tostring(node.user_key), null)
  }]
  precondition {
    condition     = length(local.nodes) == var.nodes && local.nodes[0].role == "head"
    error_message = "The provider must give the nodes asked for, the head first."
  }
}
