#!/bin/sh
# Unpacks Horovod into /build/src and compiles what does not depend on a framework: Gloo and Horovod's common sources.
set -eu

mkdir /build/src
tar -xf "/wheels/horovod-$HOROVOD.tar.gz" -C /build/src --strip-components 1
rm -r /wheels
cd /build/src
sed -i "s/set(CMAKE_CXX_STANDARD 14)/set(CMAKE_CXX_STANDARD $CXX_STANDARD)/" CMakeLists.txt horovod/torch/CMakeLists.txt
# A second copy of Gloo would be compiled for TensorFlow as C++17; with the line above the first one is C++17 already.
sed -i 's/set(Tensorflow_CXX17 TRUE)/set(Tensorflow_CXX17 FALSE)/' horovod/tensorflow/CMakeLists.txt
# TensorFlow's flags name the same standard once more, which ccache takes for another command.
# shellcheck disable=SC2016 # the variables are CMake's
sed -i 's/^set(CMAKE_CXX_FLAGS "${Tensorflow_COMPILE_FLAGS}/string(REGEX REPLACE "--std=[^ ]+" "" Tensorflow_COMPILE_FLAGS "${Tensorflow_COMPILE_FLAGS}")\n&/' \
    horovod/tensorflow/CMakeLists.txt
# Release is what RelWithDebInfo is here (-O3), without debug symbols.
sed -i "s/'RelWithDebInfo'/'Release'/" setup.py
cat /build/common.cmake >>CMakeLists.txt

# The folder that setup.py will use: Gloo's generated header is found by its path.
python=/opt/build/bin/python
build=/build/src/build/temp.$("$python" -c 'import sys, sysconfig
print(f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}")')/Release
mkdir -p "$build"
cd "$build"
export HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1
export HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1
/opt/build/bin/cmake /build/src -DCMAKE_BUILD_TYPE=Release -DCMAKE_LIBRARY_OUTPUT_DIRECTORY_RELEASE="$build/lib" \
    -DPYTHON_EXECUTABLE:FILEPATH="$python"
/opt/build/bin/cmake --build . --target gloo horovod_common -- -j"$(nproc)"
ccache --show-stats
# Another configuration follows; what counts is in ccache.
rm -rf /build/src/build
