"""A configuration that names a stranger's code, in every way that we know of, in every command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chimera.config.trusted_config import declared, recorded
from chimera.errors import UserError
from chimera.rundir.directory import RunDir
from tests.safety.kit import CODE, COMMANDS, OF_EXPORT, Scene, refused

Config = dict[str, Any]
Change = Callable[[Config, Scene], object]

#: Commands that build from what the directory says; `go on` takes the command line's word.
BUILDERS = [name for name in COMMANDS if name != "go on"]


#: A node that runs the stranger's code when it is built.
EVIL = {"_target_": f"{CODE}.run"}


def hub(config: Config, scene: Scene) -> None:
    node = {"_target_": "torch.hub.load", "repo_or_dir": str(scene.code), "model": "run"}
    config["mixer"] = {**node, "source": "local", "trust_repo": True}


def in_a_list(config: Config, scene: Scene) -> None:
    inner = {"_target_": "os.system", "command": f"touch {scene.canary}"}
    config["norm"]["eps"] = [1, {"deep": [[inner]]}]


def interpolated(config: Config, scene: Scene) -> None:
    node = f"{{_target_: os.system, command: touch {scene.canary}}}"
    config["mixer"]["kv_heads"] = "${oc.create:" + node + "}"


def remote_model(config: Config, scene: Scene) -> None:
    about = {"auto_map": {"AutoConfig": "modeling_evil.run", "AutoModel": "modeling_evil.run"}}
    (scene.code / "config.json").write_text(json.dumps(about))
    name = "chimera.model.hf_settings.HuggingFace"
    config["model"] = {"_target_": name, "name": str(scene.code), "max_len": 16}


def put(path: str, value: Any) -> Change:
    """Replaces the value at a dotted path."""

    def change(config: Config, scene: Scene) -> None:
        *parents, last = path.split(".")
        for key in parents:
            config = config[key]
        config[last] = value

    return change


#: Attack to what it changes and a part of the line that refuses it.
ATTACKS: dict[str, tuple[Change, str]] = {
    "hub": (hub, "mixer._target_=torch.hub.load is not declared"),
    "in a list": (in_a_list, "norm.eps.1.deep.0.0._target_=os.system is not declared"),
    "callback of a part": (
        put("norm.callbacks", {"mine": EVIL}),
        f"norm.callbacks.mine._target_={CODE}.run is not declared",
    ),
    "partial": (
        put("ffn", {"_target_": "functools.partial", "_args_": [EVIL], "_partial_": True}),
        "ffn._target_=functools.partial is not declared",
    ),
    "not recursive": (put("position._recursive_", False), "position._recursive_=false"),
    "positional": (put("position._args_", ["x"]), "position._args_=["),
    "partial that is no truth": (put("position._partial_", EVIL), "position._partial_={"),
    "target that is no text": (
        put("mixer.inner", {"_target_": {"_target_": "os.getcwd"}}),
        "mixer.inner._target_={",
    ),
    "function of ours": (
        put("mixer", {"_target_": "chimera.config.groups.add", "folder": "x"}),
        "mixer._target_=chimera.config.groups.add is not declared",
    ),
    "through a module of ours": (
        put("mixer", {"_target_": "chimera.rundir.directory.os.system", "command": "true"}),
        "mixer._target_=chimera.rundir.directory.os.system is not declared",
    ),
    "class of another group": (
        put("mixer", {"_target_": "chimera.train.loggers.WandbRun", "save_dir": "x"}),
        "mixer._target_=chimera.train.loggers.WandbRun is not declared",
    ),
    "interpolated": (interpolated, "mixer.kv_heads=${oc.create:"),
    "environment": (put("model.dropout", "${oc.env:HOME}"), "model.dropout=${oc.env:HOME}"),
    "missing": (put("model.dim", "???"), "model.dim=???"),
    "trainer": (put("trainer.plugin", EVIL), f"trainer.plugin._target_={CODE}.run is not declared"),
    "unknown argument": (put("model.builder", f"{CODE}.run"), "model.builder is n"),
    "wrong type": (put("model.dim", [f"{CODE}.run"]), "model.dim="),
    "no part": (lambda config, _: config.pop("mixer"), "no node mixer"),
    "unknown group": (put("extra", EVIL), f"extra._target_={CODE}.run is not declared"),
    "remote model": (remote_model, "not loaded on a file's word"),
    "option that is a path": (
        put("choices.mixer", f"../../{CODE}/mixer"),
        f"choices.mixer=../../{CODE}/mixer",
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_runs_configuration(
    attack: str, scene: Callable[..., Scene], capsys: pytest.CaptureFixture[str]
) -> None:
    here = scene()
    here.config(lambda config: ATTACKS[attack][0](config, here))
    names = [n for n in BUILDERS if not (attack == "remote model" and n in ("generate", "mmlu"))]
    refused(here, names, COMMANDS, ATTACKS[attack][1], capsys)


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_exported_configuration(
    attack: str, scene: Callable[..., Scene], capsys: pytest.CaptureFixture[str]
) -> None:
    here = scene("exported")
    here.config(lambda config: ATTACKS[attack][0](config, here))
    refused(here, [*OF_EXPORT], OF_EXPORT, ATTACKS[attack][1], capsys)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mixer: !!python/object/apply:os.system ['touch {canary}']\n", "could not determine"),
        ("a: &a [1, 1]\nb: &b [*a, *a]\nc: [*b, *b]\n", "it repeats a node by an alias"),
        ("a: &a [*a]\n", "it repeats a node by an alias"),
        ("[" * 60 + "]" * 60, "holds no mapping"),
        ("a: " + "[" * 60 + "]" * 60, "nests more than 40 levels deep"),
        ("a: " + "[" * 900 + "]" * 900, "nests more than 40 levels deep"),
        ("- a\n- b\n", "holds no mapping of keys to values"),
        ("a: b: c\n", "cannot be read"),
        ("\x00", "cannot be read"),
    ],
)
def test_a_file_that_is_no_plain_yaml(
    text: str, says: str, scene: Callable[..., Scene], capsys: pytest.CaptureFixture[str]
) -> None:
    here = scene()
    (here.folder / "config.yaml").write_text(text.replace("{canary}", str(here.canary)))
    refused(here, [*COMMANDS], COMMANDS, says, capsys)


def test_what_is_never_built_is_never_looked_at(
    scene: Callable[..., Scene], capsys: pytest.CaptureFixture[str]
) -> None:
    """A run with the user's own logger or callback is tested without them."""
    here = scene()

    def own(config: Config) -> None:
        for group in ("logger", "guard", "launcher"):
            config[group] = {"_target_": f"{CODE}.run"}
        config["callbacks"]["mine"] = {"_target_": f"{CODE}.run"}
        for key in ("optimizer", "schedule"):
            config["optim"][key] = {"_target_": f"{CODE}.run", "_partial_": True}

    here.config(own)
    for name in ("eval", "generate", "export"):
        assert COMMANDS[name](here.folder, here.root) == 0, capsys.readouterr().err
    assert not here.canary.exists()
    # Repeating a step of training does build the optimiser.
    refused(here, ["replay"], COMMANDS, f"_target_={CODE}.run is not declared", capsys)
    assert {"logger", "callbacks"}.isdisjoint(recorded(RunDir(here.folder)))


@pytest.mark.parametrize("name", ["torch.optim.SGD", "torch.optim.AdamW"])
def test_any_optimiser_of_torch_may_repeat_a_step(name: str, scene: Callable[..., Scene]) -> None:
    here = scene()
    here.config(lambda config: config["optim"]["optimizer"].update(_target_=name))
    assert recorded(RunDir(here.folder), training=True)["optim"]["optimizer"]["_target_"] == name
    here.config(lambda config: config["mixer"].update(_target_=name))
    with pytest.raises(UserError, match="is not declared"):
        recorded(RunDir(here.folder), training=True)


def test_the_honest_directory_passes(
    scene: Callable[..., Scene], capsys: pytest.CaptureFixture[str]
) -> None:
    here = scene()
    for name in ("eval", "generate", "export", "init_from", "go on"):
        assert COMMANDS[name](here.folder, here.root) == 0, (name, capsys.readouterr().err)


def test_the_honest_export_passes(scene: Callable[..., Scene]) -> None:
    here = scene("exported")
    for name, command in OF_EXPORT.items():
        assert command(here.folder, here.root) == 0, name


def test_every_group_that_is_built_declares_classes(tmp_path: Path) -> None:
    assert {group for group, targets in declared().items() if targets} >= {
        *("model", "mixer", "norm", "quant", "ffn", "position", "adapter"),
        *("data", "tokenizer", "task", "trainer", "optim"),
    }
