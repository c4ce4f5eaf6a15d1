# Nova instances, one a node. The head has a floating address; the workers are reached through it.

locals {
  names = [for index in range(var.nodes) : "node${index}"]
  labels = merge(
    var.labels,
    { "hvdctl.cluster" = var.cluster },
    { for until in terraform_data.until : "hvdctl.until" => until.output },
  )
  # Neutron has tags where Nova and Cinder have metadata. They are short, and take no slash: the owner's id has to do.
  tags = [for name, value in local.labels : "${name}=${value}" if name != "hvdctl.owner-name"]

  own_disk = var.options.disk != null
  private  = [for port in openstack_networking_port_v2.node : port.all_fixed_ips[0]]

  nodes = [for index, node in openstack_compute_instance_v2.node : {
    id              = node.id
    name            = local.names[index]
    role            = index == 0 ? "head" : "worker"
    kind            = "machine"
    address         = index == 0 ? openstack_networking_floatingip_v2.head.address : local.private[index]
    private_address = local.private[index]
    ssh_user        = "hvdctl"
    ssh_port        = 22
    # The head's machine, by its name in hvdctl's SSH configuration: its host key is known by that name.
    ssh_proxy = index == 0 ? null : "${local.names[0]}.machine"
    slots     = var.slots
    gpus      = var.gpus
  }]
}

data "openstack_identity_auth_scope_v3" "own" {
  name = "own"
}

data "openstack_images_image_v2" "image" {
  name        = var.options.image
  most_recent = true
}

# Where the cluster was first made.
resource "terraform_data" "origin" {
  input = {
    project = data.openstack_identity_auth_scope_v3.own.project_id
    region  = data.openstack_identity_auth_scope_v3.own.region
  }
  lifecycle {
    ignore_changes = [input]
    postcondition {
      condition = (
        self.output.project == data.openstack_identity_auth_scope_v3.own.project_id &&
        self.output.region == data.openstack_identity_auth_scope_v3.own.region
      )
      error_message = "cloud: the cluster stands in project ${self.output.project}, region ${self.output.region}, and can't move; take it down first."
    }
  }
}

# Chosen once: a newer image does not make the nodes anew. Another choice of the user's does.
resource "terraform_data" "choice" {
  input            = data.openstack_images_image_v2.image.id
  triggers_replace = [var.options.image, var.options.flavor, var.options.zone, var.options.disk, var.options.server_group]
  lifecycle {
    ignore_changes = [input]
    precondition {
      condition     = var.options.image != null && var.options.flavor != null
      error_message = "options: write image and flavor as the cloud names them, such as image = \"debian-12\", flavor = \"m1.large\"."
    }
  }
}

# Counted from the first `up`, or from the one that changed the time to live.
resource "terraform_data" "until" {
  count            = var.options.ttl == null ? 0 : 1
  input            = timeadd(timestamp(), var.options.ttl)
  triggers_replace = [var.options.ttl]
  lifecycle {
    ignore_changes = [input]
  }
}

# Has neither tags nor metadata: cluster and owner are in its name.
resource "openstack_compute_servergroup_v2" "cluster" {
  count    = var.options.server_group == "none" ? 0 : 1
  name     = join(".", compact(["hvdctl-${var.cluster}", lookup(var.labels, "hvdctl.owner", "")]))
  policies = [var.options.server_group]
  lifecycle {
    # One that an earlier version made keeps its name: with another group all nodes would be recreated.
    ignore_changes = [name]
  }
}

resource "openstack_blockstorage_volume_v3" "disk" {
  count    = local.own_disk ? var.nodes : 0
  name     = "hvdctl-${var.cluster}-${local.names[count.index]}"
  size     = ceil(var.options.disk / 1073741824)
  image_id = terraform_data.choice.output
  metadata = merge(local.labels, { "hvdctl.name" = local.names[count.index] })
  lifecycle {
    replace_triggered_by = [terraform_data.choice]
  }
}

resource "openstack_compute_instance_v2" "node" {
  count             = var.nodes
  name              = "hvdctl-${var.cluster}-${local.names[count.index]}"
  flavor_name       = var.options.flavor
  image_id          = local.own_disk ? null : terraform_data.choice.output
  availability_zone = var.options.zone
  config_drive      = true
  # One that was shut down is started again.
  power_state = "active"
  # The provider keeps only a hash of it in the state.
  user_data = templatefile("${path.module}/user-data.yaml.tftpl", {
    name             = local.names[count.index]
    user             = "hvdctl"
    public_key       = var.ssh_public_key
    host_public_key  = var.ssh_host_keys[local.names[count.index]].public_key
    host_private_key = sensitive(file(var.ssh_host_keys[local.names[count.index]].private_key_file))
  })
  metadata = merge(local.labels, { "hvdctl.name" = local.names[count.index] })

  network {
    port = openstack_networking_port_v2.node[count.index].id
  }
  dynamic "block_device" {
    for_each = local.own_disk ? [openstack_blockstorage_volume_v3.disk[count.index].id] : []
    content {
      uuid                  = block_device.value
      source_type           = "volume"
      destination_type      = "volume"
      boot_index            = 0
      delete_on_termination = false
    }
  }
  dynamic "scheduler_hints" {
    for_each = openstack_compute_servergroup_v2.cluster
    content {
      group = scheduler_hints.value.id
    }
  }
  lifecycle {
    replace_triggered_by = [terraform_data.choice]
  }
  # A node that is logged in to before it has its way out would find no packages.
  depends_on = [openstack_networking_router_interface_v2.cluster, openstack_networking_secgroup_rule_v2.outside]
}
