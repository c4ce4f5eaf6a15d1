#!/usr/bin/env bash
# The main job from end to end: a cluster, a real training on all of its nodes, and nothing left behind.
# Usage: demo.sh [NODES [EPOCHS]], by default three nodes and two epochs.
set -euo pipefail
cd "$(dirname "$0")/../examples"

readonly hvdctl=${HVDCTL:+$(cd .. && realpath "$HVDCTL")}
readonly name=hvdctl-demo nodes=${1:-3} epochs=${2:-2}

step() {
    printf '\n$ hvdctl %s\n' "$*"
    "${hvdctl:-hvdctl}" "$@"
}

trap '"${hvdctl:-hvdctl}" down --name "$name" -y >/dev/null 2>&1 || true' EXIT

step up --name "$name" --nodes "$nodes" --net 1g
step run --name "$name" -- python train_cifar_convnet.py --epochs "$epochs"
step status --name "$name"
step down --name "$name" -y
