#!/bin/sh
# Takes out of /opt/jupyter what nobody uses on a node: source maps, tests, and the files that JupyterLab builds itself from.
set -eu

cd /opt/jupyter
rm -rf share/jupyter/lab/staging
find . -name '*.map' -delete
site=$(bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
find "$site" -type d \( -name tests -o -name test \) -prune -exec rm -rf {} +
# The kernel that ipykernel brings is the one of this venv, without a framework.
rm -rf share/jupyter/kernels/python3
# On all cores: pip would use one. Some packages ship templates that are no Python.
bin/python -m compileall -q -j 0 "$site" >/dev/null || true
