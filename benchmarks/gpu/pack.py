"""Pack what `make gpu` needs on a machine that has CUDA, torch and no network: `.gpu/`.

    python -m benchmarks.gpu.pack                     for Python 3.12 on x86-64 Linux
    python -m benchmarks.gpu.pack --python 3.11

It holds the wheels of all other packages that the program imports, in the versions of
`constraints.txt`, and the documents of the default corpus. Copy the checkout with this folder to
the machine and run `make gpu` there. The packed folder may have 64 MiB at most.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.gpu.setting import PACKED
from chimera.paths import ROOT

#: Distributions that a training run, the contract and the presets import, beside torch and what
#: torch itself requires.
NAMES = (
    "annotated-types", "antlr4-python3-runtime", "anyio", "click", "einops", "filelock", "h11",
    "hf-xet", "httpcore2", "httpx2", "idna", "shellingham", "truststore", "typer",
    "huggingface-hub", "hydra-core", "jaxtyping", "lightning", "lightning-utilities",
    "markdown-it-py", "mdurl", "numpy", "omegaconf", "packaging", "protobuf", "pydantic",
    "pydantic-core", "pygments", "pytorch-lightning", "pyyaml", "regex", "rich", "safetensors",
    "sentencepiece", "tokenizers", "torchao", "torchmetrics", "tqdm", "transformers",
    "typing-extensions", "typing-inspection", "wadler-lindig",
    "flash-linear-attention", "fla-core",
)  # fmt: skip
MOST_BYTES = 64 * 2**20


def main(arguments: list[str] | None = None) -> int:
    """Write `.gpu/wheels` and `.gpu/documents.json.gz`; return 1 if they are too large."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.pack", description=__doc__)
    parser.add_argument("--python", default="3.12", help="version of Python on that machine")
    parser.add_argument("--out", type=Path, default=PACKED)
    options = parser.parse_args(arguments)
    wheels = options.out / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    wheels.mkdir(parents=True)
    for requirement in requirements((ROOT / "constraints.txt").read_text()):
        fetch(requirement, options.python, wheels)
    documents = options.out / "documents.json.gz"
    subprocess.run([sys.executable, "-m", "chimera.data.corpus.pydocs", documents], check=True)
    size = sum(file.stat().st_size for file in options.out.rglob("*") if file.is_file())
    print(f"{options.out}: {len(list(wheels.iterdir()))} wheels, {size / 2**20:.1f} MiB in all")
    if size > MOST_BYTES:
        print(f"error: more than {MOST_BYTES >> 20} MiB", file=sys.stderr)
        return 1
    return 0


def requirements(constraints: str) -> list[str]:
    """Exact requirements of NAMES.

    Args:
        constraints: contents of `constraints.txt`.

    Raises:
        LookupError: a name is not pinned there.
    """
    pins = dict(line.split("==", 1) for line in constraints.splitlines() if "==" in line)
    pinned = {name.strip().lower().replace("_", "-"): v.split()[0] for name, v in pins.items()}
    missing = [name for name in NAMES if name not in pinned]
    if missing:
        raise LookupError(f"constraints.txt does not pin {', '.join(missing)}")
    return [f"{name}=={pinned[name]}" for name in NAMES]


def fetch(requirement: str, python: str, wheels: Path) -> None:
    """Download the wheel of that Python, or build it where only the sources are published."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    platforms = [f"manylinux_2_{n}_x86_64" for n in (34, 31, 28, 27, 26, 24, 17, 12, 5)]
    platforms += ["manylinux2014_x86_64", "manylinux1_x86_64"]
    chosen = [word for p in platforms for word in ("--platform", p)]
    command = [*pip, "download", "--no-deps", "--only-binary=:all:", "--implementation", "cp"]
    command += ["--python-version", python, *chosen, "-d", str(wheels), requirement]
    if subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0:
        return
    with tempfile.TemporaryDirectory() as folder:  # pure Python, published as sources only
        subprocess.run([*pip, "wheel", "--no-deps", "-w", folder, requirement], check=True)
        for file in Path(folder).glob("*-none-any.whl"):
            shutil.move(file, wheels)
    name = requirement.partition("==")[0].replace("-", "_")
    if not any(file.name.lower().startswith(name) for file in wheels.iterdir()):
        raise SystemExit(f"error: {requirement} has no wheel for Python {python}")


if __name__ == "__main__":
    sys.exit(main())
