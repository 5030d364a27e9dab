"""The callbacks of a run come from its configuration, in the order that matters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hydra.utils import instantiate
from lightning.pytorch.callbacks import Callback

from chimera.cli.train import main as train
from chimera.config.compose import compose, plain
from chimera.errors import UserError
from chimera.paths import CONF
from chimera.train.callbacks import NEEDED, ORDER, check_order, make_callbacks, nodes
from chimera.train.check import check

#: The names under which checkpoints on users' disks hold the state of callbacks. Frozen: a class
#: that is renamed keeps its line by a `state_key` of its own.
STATE_KEYS = {
    "chimera.callback.log.steps.Steps": "Steps",
    "chimera.callback.state.checkpoint.Checkpoints": "Checkpoints",
    "chimera.callback.state.guard.NanGuard": "NanGuard",
    "chimera.callback.part.adapter.AdapterLog": "AdapterLog",
    "chimera.callback.part.qdyt.QDyTSchedule": "QDyTSchedule",
}


def config(*overrides: str) -> dict[str, Any]:
    return plain(compose(["scale=smoke", *overrides]))


def names(of: dict[str, Any]) -> list[str]:
    return [where for where, _ in nodes(of)]


def test_the_order_and_where_others_stand() -> None:
    found = names(config("norm=qdyt", "+callbacks.mine._target_=tests.train.tiny.Counter"))
    assert found[:3] == ["callbacks.randomness", "norm.callbacks.qdyt", "callbacks.mine"]
    assert found[-1] == "callbacks.snapshot"
    own = [name.removeprefix("callbacks.") for name in found if name.startswith("callbacks.")]
    assert [name for name in own if name in ORDER] == list(ORDER)


def test_a_callback_is_left_out_by_null() -> None:
    left = config("callbacks.gradients=null", "callbacks.progress=null")
    check(left)
    made = {type(callback).__name__ for callback in make_callbacks(left)}
    assert not made & {"GradientNorms", "Progress"}


@pytest.mark.parametrize(
    ("order", "line"),
    [
        (["randomness", "steps"], "callbacks.stop is missing"),
        ([*ORDER[1:], "randomness", "files", "guard"], "callbacks.randomness has to come before"),
        (["x", *NEEDED], "callbacks.randomness has to be the first callback, not x"),
        ([*NEEDED], "callbacks.snapshot has to be the last callback, not guard"),
        (
            [ORDER[0], "files", "guard", "checkpoints", "steps", "stop", "schedule", "snapshot"],
            "callbacks.schedule has to come before callbacks.checkpoints",
        ),
    ],
)
def test_a_wrong_order_is_one_line(order: list[str], line: str) -> None:
    with pytest.raises(UserError, match=line):
        check_order(order)


def test_a_callback_of_a_strangers_and_the_keys_of_states(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(["the cat sees a big red dog"] * 300))
    words = ["scale=smoke", "norm=qdyt", "logger=none", "tokenizer=word", "trainer.max_steps=2"]
    words += ["data=text", f"data.path={tmp_path}/text.txt", f"data.cache_dir={tmp_path}/cache"]
    words += ["+callbacks.mine._target_=tests.train.tiny.Counter", "+callbacks.mine.every=1"]
    words += ["trainer.accumulate_grad_batches=1", f"run_dir={tmp_path}/run", "model.dim=16"]
    assert train(words) == 0
    count, *order = (tmp_path / "run" / "counted").read_text().split()
    assert int(count) == 2
    assert (order[0], order[-1]) == ("StatelessRandomness", "StepSnapshot")
    saved = torch.load(tmp_path / "run/checkpoints/last.ckpt", weights_only=True)
    assert set(saved["callbacks"]) == {*STATE_KEYS.values()} - {"AdapterLog"}


def test_state_keys_of_our_callbacks_are_frozen() -> None:
    found = {}
    for node in targets():
        callback = instantiate(node)
        if not node["_target_"].startswith("chimera."):
            continue
        if type(callback).state_dict is not Callback.state_dict:
            found[node["_target_"]] = callback.state_key
    assert found == STATE_KEYS


def targets() -> list[dict[str, Any]]:
    """The node of every callback that conf/ names."""
    found = {node["_target_"]: node for _, node in nodes(config())}

    def walk(node: Any) -> None:
        for callback in (node.get("callbacks") or {}).values():
            if callback is not None:
                found[callback["_target_"]] = callback
        for inner in node.values():
            if isinstance(inner, dict):
                walk(inner)

    for file in CONF.glob("*/*.yaml"):
        if file.parent.name != "callbacks":
            walk(yaml.safe_load(file.read_text(encoding="utf-8")) or {})
    return list(found.values())
