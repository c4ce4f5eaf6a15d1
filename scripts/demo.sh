#!/usr/bin/env bash
# The main job from end to end: a cluster of three nodes, a real training on all of them, and nothing left behind.
set -euo pipefail
cd "$(dirname "$0")/../examples"

readonly hvdctl=${HVDCTL:+$(cd .. && realpath "$HVDCTL")}
readonly name=hvdctl-demo

step() {
    printf '\n$ hvdctl %s\n' "$*"
    "${hvdctl:-hvdctl}" "$@"
}

trap '"${hvdctl:-hvdctl}" down --name "$name" -y >/dev/null 2>&1 || true' EXIT

step up --name "$name" --nodes 3 --net 1g
step run --name "$name" -- python train_cifar_convnet.py --epochs 2
step status --name "$name"
step down --name "$name" -y
