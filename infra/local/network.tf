resource "hvd_network" "cluster" {
  cluster = var.cluster
  name    = "net"
  labels  = var.labels
}
