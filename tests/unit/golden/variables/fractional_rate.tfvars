{
  "cluster": "default",
  "nodes": 1,
  "slots": 1,
  "cpus": null,
  "memory": 536870912,
  "gpus": 0,
  "rate": 2010000000,
  "image": "registry/image:tag",
  "share": "auto",
  "ssh_public_key": "ssh-ed25519 USER",
  "ssh_private_key_file": "/keys/id",
  "ssh_host_keys": {
    "node0": {
      "public_key": "ssh-ed25519 HOST0",
      "private_key_file": "/keys/node0"
    }
  },
  "labels": {
    "hvdctl.owner": "0123456789abcdef",
    "hvdctl.owner-name": "me@host:/home/me/clusters"
  },
  "options": {}
}
