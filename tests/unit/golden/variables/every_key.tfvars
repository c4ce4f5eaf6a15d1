{
  "cluster": "full-1",
  "nodes": 3,
  "slots": 4,
  "cpus": 1.5,
  "memory": 4294967296,
  "gpus": 2,
  "rate": 2500000000,
  "image": "registry/image:tag",
  "share": "/data/share",
  "ssh_public_key": "ssh-ed25519 USER",
  "ssh_private_key_file": "/keys/id",
  "ssh_host_keys": {
    "node0": {
      "public_key": "ssh-ed25519 HOST0",
      "private_key_file": "/keys/node0"
    },
    "node1": {
      "public_key": "ssh-ed25519 HOST1",
      "private_key_file": "/keys/node1"
    },
    "node2": {
      "public_key": "ssh-ed25519 HOST2",
      "private_key_file": "/keys/node2"
    }
  },
  "labels": {
    "hvdctl.owner": "0123456789abcdef",
    "hvdctl.owner-name": "me@host:/home/me/clusters"
  },
  "options": {}
}
