{
  "cluster": "default",
  "nodes": 2,
  "slots": 1,
  "cpus": null,
  "memory": null,
  "gpus": 0,
  "rate": null,
  "image": "registry/image:tag",
  "share": "auto",
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
    }
  },
  "labels": {
    "hvdctl.owner": "0123456789abcdef",
    "hvdctl.owner-name": "me@host:/home/me/clusters"
  },
  "options": {}
}
