resource "hvd_switch" "cluster" {
  cluster = var.cluster
  name    = "net"
  labels  = var.labels
}
