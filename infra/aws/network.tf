# A network of the cluster's own. From outside only SSH comes in, and only from the addresses that are admitted.

resource "aws_vpc" "cluster" {
  cidr_block = "10.80.0.0/20"
  tags       = merge(local.tags, { "hvdctl.name" = "net", Name = "hvdctl-${var.cluster}" })
}

resource "aws_internet_gateway" "cluster" {
  vpc_id = aws_vpc.cluster.id
  tags   = merge(local.tags, { "hvdctl.name" = "gateway" })
}

resource "aws_subnet" "cluster" {
  vpc_id            = aws_vpc.cluster.id
  cidr_block        = aws_vpc.cluster.cidr_block
  availability_zone = terraform_data.choice.output.zone
  tags              = merge(local.tags, { "hvdctl.name" = "subnet" })
}

resource "aws_route_table" "cluster" {
  vpc_id = aws_vpc.cluster.id
  route {
    cidr_block = "0.0.0.0/0"
    gateway_id = aws_internet_gateway.cluster.id
  }
  tags = merge(local.tags, { "hvdctl.name" = "routes" })
}

resource "aws_route_table_association" "cluster" {
  subnet_id      = aws_subnet.cluster.id
  route_table_id = aws_route_table.cluster.id
}

resource "aws_security_group" "cluster" {
  name        = "hvdctl-${var.cluster}"
  description = "Nodes of the hvdctl cluster ${var.cluster}"
  vpc_id      = aws_vpc.cluster.id
  tags        = merge(local.tags, { "hvdctl.name" = "firewall" })
}

resource "aws_vpc_security_group_ingress_rule" "ssh" {
  for_each          = toset(var.options.admit)
  security_group_id = aws_security_group.cluster.id
  ip_protocol       = "tcp"
  from_port         = 22
  to_port           = 22
  cidr_ipv4         = each.value
  tags              = merge(local.tags, { "hvdctl.name" = "ssh" })
}

resource "aws_vpc_security_group_ingress_rule" "inside" {
  security_group_id            = aws_security_group.cluster.id
  ip_protocol                  = "-1"
  referenced_security_group_id = aws_security_group.cluster.id
  tags                         = merge(local.tags, { "hvdctl.name" = "inside" })
}

resource "aws_vpc_security_group_egress_rule" "all" {
  security_group_id = aws_security_group.cluster.id
  ip_protocol       = "-1"
  cidr_ipv4         = "0.0.0.0/0"
  tags              = merge(local.tags, { "hvdctl.name" = "outside" })
}
