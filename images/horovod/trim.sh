#!/bin/sh
# Takes out of /opt/venv what only compilers read: headers, static libraries, CMake files, Horovod's debug symbols.
set -eu

site=$(/opt/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
find "$site/horovod" -name '*.so' -exec strip --strip-unneeded {} +
rm -rf "$site"/torch/include "$site"/torch/share "$site"/torch/lib/*.a "$site"/torch/bin/*test* \
    "$site"/tensorflow/include
find "$site" -type d -name tests -path '*/numpy/*' -prune -exec rm -rf {} +
