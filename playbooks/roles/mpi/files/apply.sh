#!/bin/sh
# Hostfile and settings for an mpirun on the machine itself.
put "$HVD_ETC/hostfile" 644 "$HVD_HOSTFILE" || true
# A network and not an interface: it is the same on all machines, whatever their interfaces are called.
put "$HVD_ETC/openmpi.conf" 644 "btl_tcp_if_include = $HVD_NETWORK
oob_tcp_if_include = $HVD_NETWORK" || true
