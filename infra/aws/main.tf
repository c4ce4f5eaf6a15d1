# EC2 instances, one a node, side by side in one zone.

locals {
  names = [for index in range(var.nodes) : "node${index}"]
  zones = [
    for zone in data.aws_ec2_instance_type_offerings.zones.locations : zone
    if can(regex("^${var.options.region}[a-z]$", zone))
  ]
  tags = merge(
    var.labels,
    { "hvdctl.cluster" = var.cluster },
    { for until in terraform_data.until : "hvdctl.until" => until.output },
  )

  # In another region or account nothing of the cluster is seen, and all of it would be taken for gone. So where it was
  # made, as the state has it, is where it is looked for, in `destroy` too, which knows no conditions.
  known  = try(jsondecode(file("${path.root}/terraform.tfstate")).resources, [])
  origin = [for it in local.known : try(it.instances[0].attributes.output.value, null) if it.type == "terraform_data" && it.name == "origin"]

  nodes = [for index, node in aws_instance.node : {
    id              = node.id
    name            = local.names[index]
    role            = index == 0 ? "head" : "worker"
    kind            = "machine"
    address         = node.public_ip
    private_address = node.private_ip
    ssh_user        = "hvdctl"
    ssh_port        = 22
    ssh_proxy       = null
    slots           = var.slots
    gpus            = var.gpus
  }]
}

data "aws_caller_identity" "own" {}

data "aws_ec2_instance_type_offerings" "zones" {
  location_type = "availability-zone"
  filter {
    name   = "instance-type"
    values = [var.options.instance_type]
  }
}

data "aws_ami" "image" {
  owners      = [var.options.image_owner]
  most_recent = true
  filter {
    name   = "name"
    values = [var.options.image_name]
  }
  filter {
    name   = "architecture"
    values = ["x86_64"]
  }
}

# Where the cluster was first made.
resource "terraform_data" "origin" {
  input = {
    account = data.aws_caller_identity.own.account_id
    region  = var.options.region
  }
  lifecycle {
    ignore_changes = [input]
    postcondition {
      condition     = self.output.region == var.options.region
      error_message = "region: the cluster stands in ${self.output.region} and can't move to ${var.options.region}; take it down first."
    }
  }
}

# Chosen once: neither a newer image nor a new zone of AWS makes the nodes anew. Another choice of the user's does.
resource "terraform_data" "choice" {
  input = {
    image = data.aws_ami.image.id
    zone  = var.options.zone != null ? var.options.zone : try(sort(local.zones)[0], "")
  }
  triggers_replace = [var.options.instance_type, var.options.zone, var.options.image_owner, var.options.image_name]
  lifecycle {
    ignore_changes = [input]
    precondition {
      condition     = length(local.zones) > 0
      error_message = "instance_type: ${var.options.region} has no ${var.options.instance_type}; choose another type or region."
    }
    precondition {
      condition     = var.options.zone == null || contains(local.zones, coalesce(var.options.zone, "none"))
      error_message = "zone: there is no ${var.options.instance_type} in that zone; choose one of: ${join(", ", local.zones)}."
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

resource "aws_placement_group" "cluster" {
  count    = var.options.placement_group ? 1 : 0
  name     = "hvdctl-${var.cluster}"
  strategy = "cluster"
  tags     = merge(local.tags, { "hvdctl.name" = "placement" })
}

resource "aws_instance" "node" {
  count                  = var.nodes
  ami                    = terraform_data.choice.output.image
  instance_type          = var.options.instance_type
  subnet_id              = aws_subnet.cluster.id
  vpc_security_group_ids = [aws_security_group.cluster.id]
  # One that was stopped has no public address any more, and is made anew: it counts as lost.
  associate_public_ip_address = true
  placement_group             = one(aws_placement_group.cluster[*].name)
  user_data_replace_on_change = true
  # The provider keeps only a hash of it in the state.
  user_data = templatefile("${path.module}/user-data.yaml.tftpl", {
    name             = local.names[count.index]
    user             = "hvdctl"
    public_key       = var.ssh_public_key
    host_public_key  = var.ssh_host_keys[local.names[count.index]].public_key
    host_private_key = sensitive(file(var.ssh_host_keys[local.names[count.index]].private_key_file))
  })
  tags        = merge(local.tags, { "hvdctl.name" = local.names[count.index], Name = "hvdctl-${var.cluster}-${local.names[count.index]}" })
  volume_tags = merge(local.tags, { "hvdctl.name" = local.names[count.index] })

  root_block_device {
    volume_size = var.options.disk == null ? null : ceil(var.options.disk / 1073741824)
    volume_type = "gp3"
    encrypted   = true
  }
  metadata_options {
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }
  dynamic "instance_market_options" {
    for_each = var.options.spot ? ["spot"] : []
    content {
      market_type = instance_market_options.value
    }
  }
  lifecycle {
    replace_triggered_by = [terraform_data.choice]
  }
  # A node that is logged in to before it has its way out would find no packages.
  depends_on = [aws_route_table_association.cluster, aws_vpc_security_group_egress_rule.all]
}
