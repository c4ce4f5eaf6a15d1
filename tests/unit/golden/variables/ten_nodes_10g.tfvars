{
  "cluster": "big",
  "nodes": 10,
  "slots": 1,
  "cpus": null,
  "memory": null,
  "gpus": 0,
  "rate": 10000000000,
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
    },
    "node2": {
      "public_key": "ssh-ed25519 HOST2",
      "private_key_file": "/keys/node2"
    },
    "node3": {
      "public_key": "ssh-ed25519 HOST3",
      "private_key_file": "/keys/node3"
    },
    "node4": {
      "public_key": "ssh-ed25519 HOST4",
      "private_key_file": "/keys/node4"
    },
    "node5": {
      "public_key": "ssh-ed25519 HOST5",
      "private_key_file": "/keys/node5"
    },
    "node6": {
      "public_key": "ssh-ed25519 HOST6",
      "private_key_file": "/keys/node6"
    },
    "node7": {
      "public_key": "ssh-ed25519 HOST7",
      "private_key_file": "/keys/node7"
    },
    "node8": {
      "public_key": "ssh-ed25519 HOST8",
      "private_key_file": "/keys/node8"
    },
    "node9": {
      "public_key": "ssh-ed25519 HOST9",
      "private_key_file": "/keys/node9"
    }
  },
  "labels": {
    "hvdctl.owner": "0123456789abcdef",
    "hvdctl.owner-name": "me@host:/home/me/clusters"
  },
  "options": {}
}
