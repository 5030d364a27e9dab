#!/usr/bin/env bash
# `make gpu`: measure on this machine's GPU with the Python that has torch, and nothing of .venv.
#   PYTHON=python3 tools/gpu.sh [options of python -m benchmarks.gpu]
# Where .gpu/wheels is there (tools/gpu_pack.sh writes it), the packages come from it:
# no network is needed, and nothing is installed into that Python.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
paths=src:.
if [ -d .gpu/wheels ]; then
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    "$python" -m pip install -q --disable-pip-version-check --root-user-action=ignore --no-index --no-deps --no-compile --target "$site" .gpu/wheels/*.whl
    paths=$paths:$site
fi
PYTHONPATH=$paths "$python" -m "${MODULE:-benchmarks.gpu}" "$@"
