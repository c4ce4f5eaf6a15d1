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

mkdir /build/src
tar -xf "/wheels/horovod-$HOROVOD.tar.gz" -C /build/src --strip-components 1
cd /build/src
sed -i "s/set(CMAKE_CXX_STANDARD 14)/set(CMAKE_CXX_STANDARD $CXX_STANDARD)/" CMakeLists.txt horovod/torch/CMakeLists.txt

export HOROVOD_CMAKE=/opt/build/bin/cmake CMAKE_POLICY_VERSION_MINIMUM=3.5
MAKEFLAGS="-j$(nproc)"
export MAKEFLAGS PATH="/opt/venv/bin:$PATH"
pip install -v --no-cache-dir --no-index --no-deps --no-build-isolation .
cd /
rm -rf /build/src
