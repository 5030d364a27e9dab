"""What the command line composes to."""

from __future__ import annotations

import pytest
from hydra import compose as hydra_compose
from hydra._internal.config_repository import ConfigRepository

from chimera.config import choices
from chimera.config.compose import compose, plain
from chimera.config.groups import forget, groups
from chimera.config.hydra_calls import hydra_on
from chimera.config.schema import describe
from chimera.paths import CONF
from chimera.types import PositiveInt, ProperFraction


def test_choices_are_recorded() -> None:
    cfg = plain(compose(["mixer=gqa", "norm=rmsnorm"]))
    assert cfg["choices"]["mixer"] == "gqa"
    assert cfg["choices"]["norm"] == "rmsnorm"
    assert set(cfg["choices"]) == {g for g in groups() if (CONF / g).is_dir()}
    assert "hydra" not in cfg


def test_an_option_may_be_in_a_folder_of_its_group() -> None:
    cfg = plain(compose(["preset=profile", "data=mad/parity", "data.held_out=7"]))
    assert cfg["choices"]["data"] == "mad/parity"
    assert cfg["data"]["held_out"] == 7
    assert cfg["tokenizer"]["size"] == cfg["data"]["vocabulary"] == 3


def test_a_bound_is_no_setting_and_bounds_what_is_null() -> None:
    cfg = plain(compose(["scale=smoke", "model.dim=32"]))
    assert cfg["model"]["dim"] == 32
    assert cfg["data"]["seq_len"] == cfg["model"]["max_len"] == 64
    assert plain(compose([]))["trainer"]["limit_test_batches"] is None
    assert cfg["trainer"]["limit_test_batches"] == 2


def test_a_cycle_brings_its_members_in() -> None:
    cfg = plain(
        compose(["mixer=pattern", "mixer.cycle=[gqa,mqa,gqa]", "mixer.members.gqa.heads=2"])
    )
    assert cfg["mixer"]["members"]["mqa"]["kv_heads"] == 1
    assert cfg["mixer"]["members"]["gqa"]["heads"] == 2


def test_a_part_brings_others_along_unless_the_command_line_chooses_them() -> None:
    for words in (["mixer=best_combo"], ["preset=saidl_gpt", "mixer=best_combo"]):
        cfg = plain(compose(words))
        assert cfg["choices"]["position"] == "alibi"
        assert "with" not in cfg["mixer"]
    assert plain(compose(["mixer=best_combo", "position=rope"]))["choices"]["position"] == "rope"


def test_types_in_words() -> None:
    assert describe(PositiveInt | None) == "an integer of at least 1 or null"
    assert describe(ProperFraction) == "a number of at least 0 and below 1"


def test_a_file_is_read_once_and_no_composition_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    load = ConfigRepository.load_config

    def counted(self: ConfigRepository, config_path: str) -> object:
        reads.append(config_path)
        return load(self, config_path)

    monkeypatch.setattr(ConfigRepository, "load_config", counted)
    forget()
    first = plain(compose(["mixer=retnet"]))
    plain(compose(["mixer=pattern", "mixer.cycle=[retnet,gqa]", "mixer.members.retnet.eps=1"]))
    choices.merged_files.cache_clear()
    assert plain(compose(["mixer=retnet"])) == first
    assert len(reads) == len(set(reads)) > 20


def test_hydra_composes_the_same() -> None:
    """Its list of files is merged here, without a second pass for Hydra's own settings."""
    chosen = ("+titan/pattern=cyclic", "logger=none", "+logger@logger.csv=csv", "data=mad/mqar")
    ours = choices.configuration(chosen)
    with hydra_on():
        theirs = hydra_compose("config", overrides=list(chosen))
    removed = ("hydra", "at")
    expected = {k: v for k, v in theirs.items_ex(resolve=False) if k not in removed}
    assert dict(ours.items_ex(resolve=False)) == expected
