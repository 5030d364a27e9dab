"""Files beside a configuration that hold more than data: checkpoints, tokenizers, arrays, links."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from chimera.adapter.shared import files as adapters
from chimera.errors import UserError
from tests.safety.kit import COMMANDS, OF_EXPORT, Payload, Scene, refused

Capture = pytest.CaptureFixture[str]
Make = Callable[..., Scene]
#: Commands that read a run's weights.
WEIGHTS = ["eval", "generate", "export", "mmlu"]


@pytest.mark.parametrize("kind", ["saved", "bare", "script", "empty", "cut", "list"])
def test_a_checkpoint(kind: str, scene: Make, capsys: Capture) -> None:
    here = scene()
    file = here.root / "evil.ckpt"
    if kind == "saved":
        torch.save({"state_dict": {}, "evil": Payload(here.canary)}, file)
    elif kind == "script":
        torch.jit.script(torch.nn.Identity()).save(str(file))
    elif kind == "list":
        torch.save([1, 2], file)
    whole = (here.folder / "checkpoints" / "last.ckpt").read_bytes()
    contents = {"bare": here.pickled(), "empty": b"", "cut": whole[: len(whole) // 2]}
    here.checkpoint(contents[kind] if kind in contents else file.read_bytes())
    says = "it has no state_dict" if kind == "list" else "holds more than tensors"
    refused(here, WEIGHTS, COMMANDS, says, capsys)
    assert COMMANDS["init_from"](here.folder, here.root) == 2
    assert says in capsys.readouterr().err
    assert not here.canary.exists()


def test_an_unfinished_run_with_a_pickle(scene: Make, capsys: Capture) -> None:
    here = scene()
    here.checkpoint(here.pickled())
    status = here.folder / "status.json"
    status.write_text(json.dumps(json.loads(status.read_text()) | {"state": "STOPPED"}))
    assert COMMANDS["go on"](here.folder, here.root) == 2
    assert "holds more than tensors" in capsys.readouterr().err
    assert not here.canary.exists()


SPECIAL = dict.fromkeys(("pad", "unk", "cls", "sep", "mask"), 0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": ["os", "system"]}, "holds no saved tokenizer"),
        ({"kind": "own.from_transformers"}, "is no tokenizer of chimera"),
        ({"kind": "base.Tokenizer"}, "is no tokenizer of chimera"),
        ({"kind": "../strangers_code.run"}, "is no tokenizer of chimera"),
        ({"kind": "\x1b]0;evil\x07\n.x"}, "is no tokenizer of chimera"),
        ({"kind": {"a": 1}}, "holds no saved tokenizer"),
        ({"special_ids": {**SPECIAL, "pad": "__import__"}}, "holds no saved tokenizer"),
        ({"special_ids": {}}, "holds no saved tokenizer"),
        ({"kind": "sentence_piece.SentencePieceTokenizer"}, "lacks a file of its tokenizer"),
    ],
)
def test_a_tokenizer(change: dict[str, object], says: str, scene: Make, capsys: Capture) -> None:
    for name, commands, chosen in (("run", COMMANDS, WEIGHTS), ("exported", OF_EXPORT, ["load"])):
        here = scene(name)
        file = here.folder / "tokenizer" / "tokenizer.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | change))
        refused(here, chosen, commands, says, capsys)
        here.code.rename(here.root / name / "code")


@pytest.mark.parametrize("contents", [b"", b"junk", b"{}", b"[" * 9999, "pickle"])
def test_the_files_of_a_tokenizer(contents: bytes | str, scene: Make, capsys: Capture) -> None:
    here = scene()
    file = here.folder / "tokenizer" / "huggingface.json"
    file.write_bytes(here.pickled() if isinstance(contents, str) else contents)
    refused(here, WEIGHTS, COMMANDS, "is no tokenizer", capsys)
    described = here.folder / "tokenizer" / "tokenizer.json"
    kind = {"kind": "sentence_piece.SentencePieceTokenizer"}
    described.write_text(json.dumps(json.loads(described.read_text()) | kind))
    file.rename(file.with_name("sentencepiece.model"))
    refused(here, WEIGHTS, COMMANDS, "is not a SentencePiece model", capsys)


@pytest.mark.parametrize("kind", ["object", "pickle", "npy", "junk", "other names", "empty"])
def test_arrays(kind: str, scene: Make, capsys: Capture) -> None:
    here = scene()
    for file in (here.folder / "test.npz", here.folder / "nan_report-2.npz"):
        with file.open("wb") as opened:
            if kind == "object":
                np.savez(opened, ids=np.array([Payload(here.canary)], dtype=object))
            elif kind == "other names":
                np.savez(opened, other=np.zeros(3))
            elif kind == "npy":
                np.save(opened, np.zeros(3))
            else:
                opened.write({"pickle": here.pickled(), "junk": b"PK\3\4", "empty": b""}[kind])
    says = "lacks the arrays" if kind == "other names" else "is not readable"
    refused(here, ["eval"], COMMANDS, says, capsys)
    says = "is of 1 micro-batches" if kind == "other names" else says
    refused(here, ["replay"], COMMANDS, says, capsys)


@pytest.mark.parametrize("contents", [b"", b"junk", b"\xff" * 64, "pickle"])
def test_exported_weights(contents: bytes | str, scene: Make, capsys: Capture) -> None:
    here = scene("exported")
    file = here.folder / "model.safetensors"
    file.write_bytes(here.pickled() if isinstance(contents, str) else contents)
    refused(here, ["load"], OF_EXPORT, "cannot be read as safetensors", capsys)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vocab_size", "23"),
        ("outputs", -1),
        ("packed", "no"),
        ("tied", {"head": ["x"]}),
        ("tied", None),
        ("chimera", []),
    ],
)
def test_the_rest_of_an_exported_configuration(
    key: str, value: object, scene: Make, capsys: Capture
) -> None:
    here = scene("exported")
    file = here.folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    says = "tied.head=" if isinstance(value, dict) else f"{key}="
    refused(here, [*OF_EXPORT], OF_EXPORT, says, capsys)


def test_tensors_that_are_tied_to_none(scene: Make, capsys: Capture) -> None:
    here = scene("exported")
    file = here.folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"tied": {"a": "__class__"}}))
    refused(here, ["load"], OF_EXPORT, "__class__", capsys)


@pytest.mark.parametrize(
    ("name", "contents"),
    [
        ("adapter_model.safetensors", b"junk"),
        ("adapter_config.json", b"{}"),
        ("adapter_config.json", b"[]"),
        ("adapter_config.json", b'{"peft_type": "os.system", "lora_alpha": 1}'),
        ("adapter_model.bin", b"pickle"),
    ],
)
def test_an_adapter(name: str, contents: bytes, scene: Make, capsys: Capture) -> None:
    here = scene("exported")
    folder = here.folder / "adapter"
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    folder.mkdir()
    from safetensors.torch import save_file

    tensors = {f"base_model.model.0.lora_{x}.weight": torch.zeros(2, 2) for x in "AB"}
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 1}')
    adapters.load(torch.nn.Sequential(torch.nn.Linear(2, 2)), folder)  # the honest one
    if name.endswith(".bin"):  # a pickle, as older peft wrote it: never read
        (folder / "adapter_model.safetensors").unlink()
        contents = here.pickled()
    (folder / name).write_bytes(contents)
    with pytest.raises(UserError):
        adapters.load(model, folder)
    refused(here, ["load"], OF_EXPORT, "adapter", capsys)


def remote(config: dict[str, object]) -> None:
    """A model of the hub."""
    node = "chimera.model.hf_settings.HuggingFace"
    config["model"] = {"_target_": node, "name": "owner/x", "max_len": 16}


@pytest.mark.parametrize("key", ["auto_map", "attn_implementation", "quantization_config"])
def test_the_body_of_another_library(key: str, scene: Make, capsys: Capture) -> None:
    for name, commands, chosen in (
        ("run", COMMANDS, ["eval", "export", "init_from", "teacher"]),
        ("exported", OF_EXPORT, [*OF_EXPORT]),
    ):
        here = scene(name)
        here.config(remote)
        refused(here, chosen, commands, "not loaded on a file's word", capsys)
        (here.folder / "body").mkdir()
        about = {"model_type": "llama", "text_config": {key: {"AutoConfig": "modeling_evil.run"}}}
        (here.folder / "body" / "config.json").write_text(json.dumps(about))
        shutil.copy(here.code / "modeling_evil.py", here.folder / "body")
        refused(here, chosen, commands, f"text_config.{key}", capsys)
        here.code.rename(here.root / name / "code")


@pytest.mark.parametrize("name", ["checkpoints", "tokenizer", "steps.csv", ".lock", "config.yaml"])
def test_links_out_of_the_directory(name: str, scene: Make, capsys: Capture) -> None:
    here = scene()
    elsewhere = here.root / "elsewhere"
    place = here.folder / name
    if place.exists():
        place.rename(elsewhere)
    else:
        elsewhere.write_text("precious")
    place.symlink_to(elsewhere)
    refused(here, [*COMMANDS], COMMANDS, f"{place} is a link out of its directory", capsys)


def test_a_checkpoint_that_is_elsewhere(scene: Make, capsys: Capture) -> None:
    here = scene()
    last = next((here.folder / "checkpoints").glob("rolling-*.ckpt"))
    last.rename(here.root / "secret.ckpt")
    last.symlink_to(here.root / "secret.ckpt")
    refused(here, [*COMMANDS], COMMANDS, "is a link out of its directory", capsys)


@pytest.mark.parametrize(
    "status",
    [
        "[]",
        "{",
        '{"state": "RUNNING"}',
        '{"state": "RUNNING", "host": "x", "time": "yesterday"}',
        '{"state": "RUNNING", "host": "x", "time": 7, "pid": "../../x"}',
    ],
)
def test_a_status_that_no_run_wrote(status: str, scene: Make, capsys: Capture) -> None:
    here = scene()
    (here.folder / "status.json").write_text(status)
    code = COMMANDS["go on"](here.folder, here.root)
    err = capsys.readouterr().err
    assert (code, err.count("\n")) == (2, 1) if "pid" not in status else code == 0, err


def test_a_report_that_names_a_state_elsewhere(scene: Make, capsys: Capture) -> None:
    here = scene()
    torch.save({"evil": Payload(here.canary)}, here.root / "evil.ckpt")
    file = here.folder / "nan_report-2.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"state": "../evil.ckpt"}))
    refused(here, ["replay"], COMMANDS, "../evil.ckpt", capsys)
    file.write_text("[" * 9999)
    refused(here, ["replay"], COMMANDS, "cannot be read", capsys)


def test_a_teacher_that_a_file_names(scene: Make, capsys: Capture, tmp_path: Path) -> None:
    here = scene()
    here.config(lambda config: config["task"].update(teacher=f"{tmp_path}/secret"))
    # A decoder's task has no such key; an encoder's has.
    refused(here, ["eval", "replay"], COMMANDS, "teacher", capsys)
