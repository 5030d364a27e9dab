"""A stranger's directories: what they would run, and every command that reads one.

Whatever runs leaves a file, the canary. Nothing may.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from chimera.cli.command import exit_code
from chimera.cli.finished import evaluate, export, generate, mmlu
from chimera.cli.train import main as train
from chimera.export import load

SHAPE = ["model.dim=16", "model.depth=1", "model.heads=2", "model.max_len=16", "data.seq_len=16"]
QUIET = ["logger=none", "trainer.progress=none", "trainer.accelerator=cpu", "data.batch_size=4"]
TEXT = "the cat sees a big red dog under one tree and runs\n"
#: Name of a folder beside every directory under attack: the stranger's code.
CODE = "strangers_code"


def line(root: Path, *more: str) -> list[str]:
    """The command line of a tiny run: a decoder on one sentence."""
    text = (root / "text.txt").resolve()  # the same one for a copy, hence the same run
    data = ["data=text", f"data.path={text}", f"data.cache_dir={root}/cache"]
    steps = ["trainer.max_steps=2", "trainer.val_check_interval=2"]
    return ["task=causal_lm", *data, "tokenizer=word", *SHAPE, *steps, *QUIET, *more]


class Payload:
    """Runs a command when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.canary}",)


class Scene:
    """A directory under attack.

    Args:
        root: of the test; holds the stranger's code and the canary.
        folder: a copy of an honest directory, to be poisoned.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder
        self.canary, self.code = root / "canary", root / CODE
        self.code.mkdir()
        run = f"import os\nos.system('touch {self.canary}')\n\n\ndef run(*_, **__):\n    return 1\n"
        for name in ("__init__.py", "hubconf.py", "modeling_evil.py"):
            (self.code / name).write_text(run)
        sys.path.insert(0, str(root))  # so that the stranger's package could be imported

    def config(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the configuration of a run, or of an export."""
        file = self.folder / "config.yaml"
        if file.exists():
            config = yaml.safe_load(file.read_text())
            change(config)
            file.write_text(yaml.safe_dump(config, sort_keys=False))
        else:
            file = self.folder / "config.json"
            about = json.loads(file.read_text())
            change(about["chimera"])
            file.write_text(json.dumps(about))

    def pickled(self) -> bytes:
        """Bytes that run a command where they are unpickled."""
        return pickle.dumps(Payload(self.canary), protocol=2)

    def checkpoint(self, contents: bytes) -> None:
        """Put these bytes in place of every checkpoint, with the checksum that fits."""
        digest = hashlib.sha256(contents).hexdigest()
        for file in (self.folder / "checkpoints").glob("*.ckpt"):
            if not file.is_symlink():
                file.write_bytes(contents)
                sidecar = file.with_name(f"{file.name}.json")
                facts = json.loads(sidecar.read_text()) | {"sha256": [digest]}
                sidecar.write_text(json.dumps(facts))

    def close(self) -> None:
        """Forget the stranger's package."""
        sys.path.remove(str(self.root))
        sys.modules.pop(CODE, None)


def _load(folder: Path, root: Path) -> int:
    return exit_code(lambda: int(load(folder).model is None))


def _start(folder: Path, root: Path) -> int:
    return train([*line(root), f"init_from={folder}", f"run_dir={root}/started"])


def _teach(folder: Path, root: Path) -> int:
    student = ["task=mlm", f"task.teacher={folder}", f"run_dir={root}/student"]
    return train([*line(root), *student])


def _replay(folder: Path, root: Path) -> int:
    return train([f"replay={folder}/nan_report-2.json"])


def _go_on(folder: Path, root: Path) -> int:
    return train([*line(root), f"run_dir={folder}", "overwrite=false"])


def _export(folder: Path, root: Path) -> int:
    return export([f"run={folder}", f"to={root}/out"])


#: Everything that builds something from a run's directory: name to command.
COMMANDS: dict[str, Callable[[Path, Path], int]] = {
    "eval": lambda folder, root: evaluate([f"run={folder}"]),
    "generate": lambda folder, root: generate([f"run={folder}", "prompt=the", "max_new=2"]),
    "export": _export,
    "mmlu": lambda folder, root: mmlu([f"run={folder}", f"data={root}/mmlu"]),
    "init_from": _start,
    "teacher": _teach,
    "replay": _replay,
    "go on": _go_on,
}
#: Everything that builds something from an exported folder.
OF_EXPORT = {"load": _load, "init_from": _start}


def refused(
    scene: Scene,
    names: Sequence[str],
    commands: dict[str, Callable[[Path, Path], int]],
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every command refuses the directory in one line that says so; nothing runs or changes."""
    before = digest(scene.folder)
    for name in names:
        capsys.readouterr()
        code = commands[name](scene.folder, scene.root)
        err = capsys.readouterr().err
        assert not scene.canary.exists(), name
        assert code == 2, (name, err)
        assert err.count("\n") == 1, (name, err)
        assert err.startswith("error: "), (name, err)
        assert says in err, (name, err)
        assert digest(scene.folder) == before, name


def digest(folder: Path) -> str:
    """Of names, links and contents of everything in a directory."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        found.update(str(path.relative_to(folder)).encode())
        if path.is_symlink():
            found.update(os.readlink(path).encode())
        elif path.is_file():
            found.update(path.read_bytes())
    return found.hexdigest()
