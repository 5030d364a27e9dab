"""Two processes give what one gives, with both strategies; a run changes their number half-way."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.golden import inputs
from tests.golden.combinations import ALL, STEPS, Combination
from tests.ranks.equality import ALONE, EXTRA, UNCAPPED, Setting, difference, losses, place, said
from tests.ranks.equality import train_forked as train
from tests.ranks.resume import WHOLE, half

#: Relative difference of a loss that sums in another order explain; in half precision that of
#: rounded activations, far from that of a step that was left out on one side (3e-2).
ROUNDING, HALF = 1e-6, 1e-3
#: Likewise of a gradient, whose rounding grows on its way back through the model.
NORM = 1e-4
STRATEGIES = ("ddp", "fsdp")
#: A rate that the size of a gradient decides, as with Adam it does not: with the gradient's norm it
#: shows a sum of the processes' gradients that is off by a factor.
WAYS = [ALL["sgd"], EXTRA["checkpointing"]]
#: Gates, pruned ranks, padded sentences with a body that is loaded, answers of unequal length.
TASKS = [ALL[name] for name in ("pretrained", "sora", "adalora", "cola-sora", "instruct")]
#: At its own rate of 1e-2 the last bit of the third step is 1e-6 in the fourth, with AVX2.
TASKS[3] = replace(TASKS[3], line=(*TASKS[3].line, "optim.lr=1e-3"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text, and the run of one process."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "inputs").mkdir()
    shutil.copy(inputs.TEXT, folder / "inputs/text.txt")
    train(ALONE, [WHOLE], folder)
    return folder


def assert_equal(folder: Path, setting: Setting, combinations: Sequence[Combination]) -> None:
    for one in combinations:
        alone, several = (losses(folder, s, one) for s in (ALONE, setting))
        assert len(several) == STEPS, said(folder, setting, one)
        found = difference(alone, several)
        assert found is not None
        assert found < ROUNDING, one.name
        norms = [losses(folder, s, one, "grad_norm") for s in (ALONE, setting)]
        assert norms[1] == pytest.approx(norms[0], rel=NORM), one.name


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_two_processes_give_the_losses_of_one(folder: Path, strategy: str) -> None:
    """With dropout, gradient accumulation, and the rest of an epoch that is no whole step."""
    setting = Setting(2, strategy)
    train(setting, [WHOLE], folder)
    assert_equal(folder, setting, [WHOLE])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_tasks_adapters_and_experts_give_the_losses_of_one(folder: Path, strategy: str) -> None:
    inputs.make(folder / "inputs")
    setting, chosen = Setting(2, strategy), [*TASKS, *UNCAPPED, *WAYS]
    train(ALONE, chosen, folder)
    train(setting, chosen, folder)
    assert_equal(folder, setting, chosen[1:])


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_the_scaler_of_fp16_leaves_out_the_steps_of_one_process(
    folder: Path, processes: int
) -> None:
    """Each process's gradients are no larger than in one, with one micro-batch or two."""
    setting, chosen = Setting(processes), [ALL["fp16"], EXTRA["fp16-accumulation"]]
    train(ALONE, chosen, folder)
    train(setting, chosen, folder)
    for one in chosen:
        alone, several = ([losses(folder, s, one, "scaler_scale")] for s in (ALONE, setting))
        assert several == alone, said(folder, setting, one)
        found = difference(*(losses(folder, s, one) for s in (ALONE, setting)))
        assert found is not None
        assert found < HALF


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_bf16_on_two_processes(folder: Path, strategy: str) -> None:
    one, setting = EXTRA["bf16-accumulation"], Setting(2, strategy)
    for each in (ALONE, setting):
        train(each, [one], folder)
    found = difference(losses(folder, ALONE, one), losses(folder, setting, one))
    assert found is not None, said(folder, setting, one)
    assert found < HALF


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
