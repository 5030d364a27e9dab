"""`chimera <command>`: the table of commands, its help, and words that are none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from chimera.cli.main import COMMANDS, main
from chimera.paths import ROOT
from chimera.program import VERSION, command_name
from tests import forks


def test_help_has_a_line_for_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--help"], ["-h"], ["help"]):
        assert main(words) == 0
        lines = capsys.readouterr().out.splitlines()
        for name, command in COMMANDS.items():
            (line,) = [line for line in lines if line.startswith(f"  chimera {name} ")]
            assert line.endswith(command.summary)
        assert all(len(line) <= 100 for line in lines)


def test_help_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "eval"]) == 0
    assert capsys.readouterr().out.startswith(f"{command_name('eval')} run=")
    for command, option in (("eval", "length="), ("export", "adapter=merge|keep|alone")):
        assert main([command, "--help"]) == 0
        assert option in capsys.readouterr().out


def test_help_names_every_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("mixer", "retnet", "train.py -m", "scale", "smoke"))


def test_a_removed_folder_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir("gone")
    (tmp_path / "gone").rmdir()
    assert main(["export", "run=/nowhere", "to=x"]) == 2
    assert capsys.readouterr().err == "error: the current folder was removed; cd to another one\n"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"chimera {VERSION}\n"
    assert main(["train", "--version"]) == 0
    assert capsys.readouterr().out.startswith("chimera ")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("chimera gen", {"generate"}),
        ("chimera e", {"eval", "export"}),
        ("chimera train mixer=re", {"mixer=retnet"}),
        ("chimera sweep quant=bitnet1", {"quant=bitnet158"}),
        ("chimera eval mixer=re", set()),
        ("chimera trian mixer=re", set()),
    ],
)
def test_a_shell_completes_commands_and_their_words(
    line: str, words: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/chimera", "-sc", "query=bash"])
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("COMP_POINT", str(len(line)))
    assert main() == 0
    assert set(capsys.readouterr().out.split()) == words


def test_no_help_imports_torch() -> None:
    code = (
        "import sys; from chimera.cli.main import COMMANDS, main;"
        "codes = [main([*words, '--help']) for words in ([], *([name] for name in COMMANDS))];"
        "slow = {'torch', 'lightning', 'scipy', 'matplotlib', 'wandb'} & set(sys.modules);"
        "sys.exit(f'{codes} {slow}' if any(codes) or slow else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("chimera ") > len(COMMANDS)


def test_a_command_is_spelt_as_it_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    assert command_name("eval") == "python eval.py"  # in a checkout
    for called in ("/usr/bin/chimera", "/place/chimera/__main__.py"):
        monkeypatch.setattr(sys, "argv", [called, "train"])
        assert command_name("eval") == "chimera eval"


def test_the_module_is_the_command(tmp_path: Path) -> None:
    (tmp_path / "chimera").mkdir()  # a folder of this name does not hide the package
    line = ["train", "--cfg", "job", "mixer=gqa", "--package", "mixer"]
    shown = forks.run("-m", "chimera", *line, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "kv_heads" in shown.stdout
    shown = forks.run("-m", "chimera", "show", "mixer=gqa", "format=mermaid", cwd=tmp_path)
    assert shown.stdout.startswith("flowchart"), shown.stderr
    assert not (ROOT / "chimera").exists()


def test_warnings_of_torchaos_import_are_left_out() -> None:
    """transformers imports torchao, which then complains that there is no GPU for its kernels."""
    script = (
        "import logging, sys\n"
        "from chimera.cli.main import main\n"
        "code = main(['--version'])\n"
        "import torchao.float8\n"
        "logging.getLogger('torchao').error('an error')\n"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr.splitlines() == ["an error"]
    assert done.returncode == 0
