"""Two processes give what one gives, with both strategies; a run changes their number half-way."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.golden import inputs
from tests.golden.combinations import ALL, STEPS, Combination
from tests.golden.story import FILE
from tests.ranks.equality import ALONE, UNCAPPED, Setting, difference, losses, place
from tests.ranks.forked import said, train
from tests.ranks.resume import WHOLE, half

#: Relative difference of a loss that sums in another order explain.
ROUNDING = 1e-6
STRATEGIES = ("ddp", "fsdp")
#: Gates, pruned ranks, padded sentences with a body that is loaded, answers of unequal length.
TASKS = [ALL[name] for name in ("pretrained", "sora", "adalora", "cola-sora", "instruct")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text, and the run of one process."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "inputs").mkdir()
    shutil.copy(FILE, folder / "inputs/text.txt")
    train(ALONE, [WHOLE], folder)
    return folder


def assert_equal(folder: Path, setting: Setting, combinations: Sequence[Combination]) -> None:
    for one in combinations:
        alone, several = (losses(folder, s, one) for s in (ALONE, setting))
        assert len(several) == STEPS, said(folder, setting, one)
        found = difference(alone, several)
        assert found is not None
        assert found < ROUNDING, one.name


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_processes_give_the_losses_of_one(folder: Path, strategy: str) -> None:
    """With dropout, gradient accumulation, and the rest of an epoch that is no whole step."""
    setting = Setting(2, strategy)
    train(setting, [WHOLE], folder)
    assert_equal(folder, setting, [WHOLE])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_tasks_adapters_and_experts_give_the_losses_of_one(folder: Path, strategy: str) -> None:
    inputs.make(folder / "inputs")
    setting, chosen = Setting(2, strategy), [*TASKS, *UNCAPPED]
    train(ALONE, chosen, folder)
    train(setting, chosen, folder)
    assert_equal(folder, setting, chosen[1:])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Setting(2, "fsdp"), ALONE),
        pytest.param(ALONE, Setting(2), marks=pytest.mark.slow),
        pytest.param(Setting(2), Setting(2, "fsdp"), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_stopped_run_goes_on_with_another_number_of_processes(
    folder: Path, first: Setting, second: Setting
) -> None:
    whole, one = losses(folder, ALONE, WHOLE), half(first, folder)
    train(first, [one], folder)
    assert len(losses(folder, first, one)) < len(whole)
    source, target = (folder / "inputs" / place(folder, s, one) for s in (first, second))
    shutil.copytree(source, target, symlinks=True)
    train(second, [one], folder)
    found = difference(whole, losses(folder, second, one))
    assert found is not None
    assert found < ROUNDING
