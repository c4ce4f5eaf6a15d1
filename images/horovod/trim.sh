#!/bin/sh
# Takes out of /opt/venv what only compilers and the packages' own developers use: headers, static libraries, CMake
# files, tests, and Horovod's debug symbols.
set -eu

cd "$(/opt/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')"
find horovod -name '*.so' -exec strip --strip-unneeded {} +
rm -rf tensorflow/include torch/include torch/share torch/test torch/lib/*.a torch/bin/protoc*
for package in mpmath networkx numpy sympy; do
    [ ! -d "$package" ] || find "$package" -type d -name tests -prune -exec rm -rf {} +
done
