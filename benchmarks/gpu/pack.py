"""Pack what `make gpu` needs on a machine that has CUDA, torch and no network: `.gpu/wheels`.

    python -m benchmarks.gpu.pack                     for Python 3.12 on x86-64 Linux
    python -m benchmarks.gpu.pack --have numpy rich   without what the machine has

It holds the wheels of all other packages that the program imports, in the versions of
`constraints.txt`. Copy the checkout with this folder to the machine and run `make gpu` there.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from chimera.paths import ROOT

#: What a training run and the jobs import, beside torch and what torch itself requires.
NAMES = (
    "annotated-types", "antlr4-python3-runtime", "anyio", "click", "einops", "filelock", "h11",
    "hf-xet", "httpcore2", "httpx2", "idna", "shellingham", "truststore", "typer",
    "huggingface-hub", "hydra-core", "jaxtyping", "lightning", "lightning-utilities",
    "markdown-it-py", "mdurl", "numpy", "omegaconf", "packaging", "protobuf", "pydantic",
    "pydantic-core", "pygments", "pytorch-lightning", "pyyaml", "regex", "rich", "safetensors",
    "sentencepiece", "tokenizers", "torchmetrics", "tqdm", "transformers",
    "typing-extensions", "typing-inspection", "wadler-lindig",
    "flash-linear-attention", "fla-core",
)  # fmt: skip
#: Measured beside our packed layers alone; it is no part of the pinned environment.
GEMLITE = "gemlite==0.6.0.post2"
PLATFORMS = ("2_34", "2_31", "2_28", "2_27", "2_26", "2_24", "2_17", "2_12", "2_5")


def main(arguments: list[str] | None = None) -> int:
    """Write the wheels."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.pack", description=__doc__)
    parser.add_argument("--python", default="3.12", help="version of Python on that machine")
    parser.add_argument("--have", nargs="+", default=[], help="packages to leave out")
    parser.add_argument("--out", type=Path, default=ROOT / ".gpu" / "wheels")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    names = [name for name in NAMES if name not in options.have]
    for requirement in [*requirements((ROOT / "constraints.txt").read_text(), names), GEMLITE]:
        fetch(requirement, options.python, options.out)
    size = sum(file.stat().st_size for file in options.out.iterdir())
    print(f"{options.out}: {len(list(options.out.iterdir()))} wheels, {size / 2**20:.1f} MiB")
    return 0


def requirements(constraints: str, names: list[str]) -> list[str]:
    """Exact requirements of these packages by the contents of `constraints.txt`.

    Raises:
        LookupError: a name is not pinned there.
    """
    pins = dict(line.split("==", 1) for line in constraints.splitlines() if "==" in line)
    pinned = {name.strip().lower().replace("_", "-"): v.split()[0] for name, v in pins.items()}
    if missing := [name for name in names if name not in pinned]:
        raise LookupError(f"constraints.txt does not pin {', '.join(missing)}")
    return [f"{name}=={pinned[name]}" for name in names]


def fetch(requirement: str, python: str, wheels: Path) -> None:
    """Download the wheel of that Python; build it where pure Python is published as sources."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    command = [*pip, "download", "--no-deps", "--only-binary=:all:", "--implementation", "cp"]
    for platform in (*(f"manylinux_{n}" for n in PLATFORMS), "manylinux2014", "manylinux1"):
        command += ["--platform", f"{platform}_x86_64"]
    command += ["--python-version", python, "-d", str(wheels), requirement]
    if subprocess.run(command, stderr=subprocess.DEVNULL).returncode:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([*pip, "wheel", "--no-deps", "-w", folder, requirement], check=True)
            for file in Path(folder).glob("*-none-any.whl"):
                file.rename(wheels / file.name)


if __name__ == "__main__":
    sys.exit(main())
