#!/bin/sh
# Takes out of /opt/venv what only compilers and the packages' own developers use: headers, static libraries, CMake
# files and tests. What stays is byte-compiled, on all cores: pip would use one.
set -eu

cd "$(/opt/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')"
rm -rf tensorflow/include torch/include torch/share torch/test torch/lib/*.a torch/bin/protoc*
for package in mpmath networkx numpy sympy; do
    [ ! -d "$package" ] || find "$package" -type d -name tests -prune -exec rm -rf {} +
done
/opt/venv/bin/python -m compileall -q -j 0 . >/dev/null || true  # some packages ship templates that are no Python
