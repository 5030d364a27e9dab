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
Change = Callable[[Config, Scene], None]

#: Commands that build from what the directory says; `go on` takes the command line's word.
BUILDERS = [name for name in COMMANDS if name != "go on"]


def hub(config: Config, scene: Scene) -> None:
    config["mixer"] = {
        "_target_": "torch.hub.load",
        "repo_or_dir": str(scene.code),
        "model": "run",
        "source": "local",
        "trust_repo": True,
    }


def evaluated(config: Config, scene: Scene) -> None:
    config["model"] = {"_target_": "builtins.eval", "_args_": [f"open('{scene.canary}', 'w')"]}


def call(config: Config, scene: Scene) -> None:
    inner = {"_target_": "os.system", "_args_": [f"touch {scene.canary}"]}
    config["data"] = {"_target_": "hydra.utils.call", "config": inner}


def system(config: Config, scene: Scene) -> None:
    config["tokenizer"] = {"_target_": "os.system", "command": f"touch {scene.canary}"}


def process(config: Config, scene: Scene) -> None:
    config["task"] = {"_target_": "subprocess.run", "args": ["touch", str(scene.canary)]}


def in_a_list(config: Config, scene: Scene) -> None:
    inner = {"_target_": "os.system", "command": f"touch {scene.canary}"}
    config["norm"]["eps"] = [1, {"deep": [[inner]]}]


def callback_of_a_part(config: Config, scene: Scene) -> None:
    config["norm"]["callbacks"] = {"mine": {"_target_": f"{CODE}.run"}}


def partial(config: Config, scene: Scene) -> None:
    inner = {"_target_": "functools.partial", "_args_": [{"_target_": f"{CODE}.run"}]}
    config["ffn"] = {**inner, "_partial_": True}


def imported_alone(config: Config, scene: Scene) -> None:
    config["quant"] = {"_target_": f"{CODE}.run", "_partial_": True}


def not_recursive(config: Config, scene: Scene) -> None:
    config["position"]["_recursive_"] = False


def positional(config: Config, scene: Scene) -> None:
    config["position"]["_args_"] = [str(scene.canary)]


def partial_that_is_no_truth(config: Config, scene: Scene) -> None:
    config["position"]["_partial_"] = {"_target_": f"{CODE}.run"}


def target_that_is_no_text(config: Config, scene: Scene) -> None:
    config["mixer"]["inner"] = {"_target_": {"_target_": "os.getcwd"}}


def function_of_ours(config: Config, scene: Scene) -> None:
    config["mixer"] = {"_target_": "chimera.config.config_folders.add", "folder": str(scene.code)}


def through_a_module_of_ours(config: Config, scene: Scene) -> None:
    config["mixer"] = {"_target_": "chimera.rundir.directory.os.system", "command": "true"}


def class_of_another_group(config: Config, scene: Scene) -> None:
    config["mixer"] = {"_target_": "chimera.train.loggers.WandbRun", "save_dir": str(scene.code)}


def interpolated(config: Config, scene: Scene) -> None:
    node = f"{{_target_: os.system, command: touch {scene.canary}}}"
    config["mixer"]["kv_heads"] = "${oc.create:" + node + "}"


def environment(config: Config, scene: Scene) -> None:
    config["model"]["dropout"] = "${oc.env:HOME}"


def missing(config: Config, scene: Scene) -> None:
    config["model"]["dim"] = "???"


def trainer(config: Config, scene: Scene) -> None:
    config["trainer"]["plugin"] = {"_target_": f"{CODE}.run"}


def unknown_argument(config: Config, scene: Scene) -> None:
    config["model"]["builder"] = f"{CODE}.run"


def wrong_type(config: Config, scene: Scene) -> None:
    config["model"]["dim"] = [f"{CODE}.run"]


def no_part(config: Config, scene: Scene) -> None:
    del config["mixer"]


def unknown_group(config: Config, scene: Scene) -> None:
    config["extra"] = {"_target_": f"{CODE}.run"}


def remote_model(config: Config, scene: Scene) -> None:
    about = {"auto_map": {"AutoConfig": "modeling_evil.run", "AutoModel": "modeling_evil.run"}}
    (scene.code / "config.json").write_text(json.dumps(about))
    config["model"] = {
        "_target_": "chimera.model.hf_settings.HuggingFace",
        "name": str(scene.code),
        "max_len": 16,
    }


def option_that_is_a_path(config: Config, scene: Scene) -> None:
    config["choices"]["mixer"] = f"../../{CODE}/mixer"


#: Attack to a part of the line that refuses it.
ATTACKS: dict[Change, str] = {
    hub: "mixer._target_=torch.hub.load is not declared",
    evaluated: "model._target_=builtins.eval is not declared",
    call: "data._target_=hydra.utils.call is not declared",
    system: "tokenizer._target_=os.system is not declared",
    process: "task._target_=subprocess.run is not declared",
    in_a_list: "norm.eps.1.deep.0.0._target_=os.system is not declared",
    callback_of_a_part: f"norm.callbacks.mine._target_={CODE}.run is not declared",
    partial: "ffn._target_=functools.partial is not declared",
    imported_alone: f"quant._target_={CODE}.run is not declared",
    not_recursive: "position._recursive_=False",
    positional: "position._args_=[",
    partial_that_is_no_truth: "position._partial_={",
    target_that_is_no_text: "mixer.inner._target_={",
    function_of_ours: "mixer._target_=chimera.config.config_folders.add is not declared",
    through_a_module_of_ours: "mixer._target_=chimera.rundir.directory.os.system is not declared",
    class_of_another_group: "mixer._target_=chimera.train.loggers.WandbRun is not declared",
    interpolated: "mixer.kv_heads=${oc.create:",
    environment: "model.dropout=${oc.env:HOME}",
    missing: "model.dim=???",
    trainer: f"trainer.plugin._target_={CODE}.run is not declared",
    unknown_argument: "model.builder is n",
    wrong_type: "model.dim=",
    no_part: "no node mixer",
    unknown_group: f"extra._target_={CODE}.run is not declared",
    remote_model: "not loaded on a file's word",
    option_that_is_a_path: f"choices.mixer=../../{CODE}/mixer",
}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.__name__)
def test_a_runs_configuration(
    attack: Change, scene: Callable[..., Scene], capsys: pytest.CaptureFixture[str]
) -> None:
    here = scene()
    here.config(lambda config: attack(config, here))
    names = [n for n in BUILDERS if not (attack is remote_model and n in ("generate", "mmlu"))]
    refused(here, names, COMMANDS, ATTACKS[attack], capsys)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.__name__)
def test_an_exported_configuration(
    attack: Change, scene: Callable[..., Scene], capsys: pytest.CaptureFixture[str]
) -> None:
    here = scene("exported")
    here.config(lambda config: attack(config, here))
    refused(here, [*OF_EXPORT], OF_EXPORT, ATTACKS[attack], capsys)


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
