#!/bin/sh
# Compiles Horovod for $FRAMEWORK (pytorch or tensorflow) into /opt/venv; $GPU_OPERATIONS is NCCL or empty.
set -eu

case $FRAMEWORK in
    pytorch) export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 ;;
    tensorflow) export HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 ;;
    *) echo "compile.sh: FRAMEWORK is pytorch or tensorflow, not '$FRAMEWORK'" >&2; exit 2 ;;
esac
export HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MXNET=1
if [ -n "$GPU_OPERATIONS" ]; then
    # The framework's own NCCL, so that one process never loads two. Its wheel lacks the name that linkers look for.
    site=$(/opt/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
    ln -sf libnccl.so.2 "$site/nvidia/nccl/lib/libnccl.so"
    export HOROVOD_NCCL_HOME="$site/nvidia/nccl" HOROVOD_NCCL_LINK=SHARED
    export HOROVOD_GPU_OPERATIONS="$GPU_OPERATIONS" HOROVOD_CUDA_HOME=/usr/local/cuda
fi

cd /build/src
export HOROVOD_CMAKE=/opt/build/bin/cmake
MAKEFLAGS="-j$(nproc)"
export MAKEFLAGS PATH="/opt/venv/bin:$PATH"
ccache --zero-stats >/dev/null
pip install -v --no-cache-dir --no-compile --no-index --no-deps --no-build-isolation .
ccache --show-stats
