# A network of the cluster's own. From outside only SSH comes in, and only from the addresses that are admitted.

data "openstack_networking_network_v2" "outside" {
  name     = var.options.external_network
  external = true
}

resource "openstack_networking_network_v2" "cluster" {
  name = "hvdctl-${var.cluster}"
  tags = local.tags
}

resource "openstack_networking_subnet_v2" "cluster" {
  name            = "hvdctl-${var.cluster}"
  network_id      = openstack_networking_network_v2.cluster.id
  cidr            = "10.80.0.0/20"
  dns_nameservers = var.options.dns
  tags            = local.tags
}

resource "openstack_networking_router_v2" "cluster" {
  name                = "hvdctl-${var.cluster}"
  external_network_id = data.openstack_networking_network_v2.outside.id
  tags                = local.tags
}

resource "openstack_networking_router_interface_v2" "cluster" {
  router_id = openstack_networking_router_v2.cluster.id
  subnet_id = openstack_networking_subnet_v2.cluster.id
}

resource "openstack_networking_secgroup_v2" "cluster" {
  name                 = "hvdctl-${var.cluster}"
  description          = "Nodes of the hvdctl cluster ${var.cluster}"
  delete_default_rules = true
  tags                 = local.tags
}

resource "openstack_networking_secgroup_rule_v2" "ssh" {
  for_each          = toset(var.options.admit)
  security_group_id = openstack_networking_secgroup_v2.cluster.id
  direction         = "ingress"
  ethertype         = "IPv4"
  protocol          = "tcp"
  port_range_min    = 22
  port_range_max    = 22
  remote_ip_prefix  = each.value
}

resource "openstack_networking_secgroup_rule_v2" "inside" {
  security_group_id = openstack_networking_secgroup_v2.cluster.id
  direction         = "ingress"
  ethertype         = "IPv4"
  remote_group_id   = openstack_networking_secgroup_v2.cluster.id
}

resource "openstack_networking_secgroup_rule_v2" "outside" {
  security_group_id = openstack_networking_secgroup_v2.cluster.id
  direction         = "egress"
  ethertype         = "IPv4"
}

resource "openstack_networking_port_v2" "node" {
  count              = var.nodes
  name               = "hvdctl-${var.cluster}-${local.names[count.index]}"
  network_id         = openstack_networking_network_v2.cluster.id
  security_group_ids = [openstack_networking_secgroup_v2.cluster.id]
  tags               = local.tags
  fixed_ip {
    subnet_id = openstack_networking_subnet_v2.cluster.id
  }
}

resource "openstack_networking_floatingip_v2" "head" {
  pool    = data.openstack_networking_network_v2.outside.name
  port_id = openstack_networking_port_v2.node[0].id
  tags    = local.tags
  # Neutron gives no address to a port that has no way out yet.
  depends_on = [openstack_networking_router_interface_v2.cluster]
}
