#!/usr/bin/env bash
# Wheels for `make gpu` on a machine that has CUDA, torch and no network: .gpu/wheels.
#   tools/gpu_pack.sh [names of packages that the machine has]
# They are those of constraints.txt, for Python 3.12 on x86-64 Linux (PYTHON_VERSION names another).
set -euo pipefail
cd "$(dirname "$0")/.."
names="annotated-types anyio click einops filelock h11 hf-xet httpcore2 httpx2 idna shellingham
    truststore typer huggingface-hub hydra-core jaxtyping lightning lightning-utilities
    markdown-it-py mdurl numpy omegaconf packaging pandas protobuf pydantic pydantic-core pygments
    python-dateutil pytorch-lightning pyyaml regex rich safetensors sentencepiece tokenizers
    torchmetrics tqdm transformers typing-extensions typing-inspection wadler-lindig
    flash-linear-attention fla-core"
for have in "$@"; do names=$(printf '%s\n' $names | grep -vx "$have"); done
platforms=$(printf -- '--platform manylinux_2_%s_x86_64 ' 34 31 28 27 26 24 17 12 5)
pip="${PYTHON:-.venv/bin/python} -m pip -q --disable-pip-version-check"
$pip download --no-deps --only-binary=:all: -c constraints.txt -d .gpu/wheels \
    --implementation cp --python-version "${PYTHON_VERSION:-3.12}" $platforms \
    --platform manylinux2014_x86_64 --platform manylinux1_x86_64 $names
# Pure Python, published as sources; gemlite is measured beside our packed layers alone.
$pip wheel --no-deps -c constraints.txt -w .gpu/wheels antlr4-python3-runtime gemlite==0.6.0.post2
du -sh .gpu/wheels
