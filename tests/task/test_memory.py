"""The estimate of a training step's memory agrees with what real steps take."""

from __future__ import annotations

import pytest
import torch

from chimera.ops.live_bytes import LiveBytes, allocated_bytes
from chimera.tables.memory import SMALL, SMALL_MODELS, composed, measured, shape
from chimera.train.model_summary import memory


@pytest.mark.sampled(1, each=("model",))
@pytest.mark.parametrize(
    ("model", "checkpointing", "optimiser"),
    [
        ("Transformer", True, "adamw"),
        ("Transformer", False, "adamw"),
        # Not with recomputation: then the update is the peak, and torchao computes more tensors in
        # it here than in its compiled step, which a run has.
        ("Transformer", False, "adamw8bit"),
        ("TITAN", True, "adamw8bit"),
        ("TITAN", False, "adamw"),
    ],
)
def test_the_estimate_is_the_peak_of_a_real_step(
    model: str, checkpointing: bool, optimiser: str
) -> None:
    words = [*SMALL_MODELS[model], *SMALL, f"optim={optimiser}"]
    config = composed(*words, checkpointing=checkpointing)
    needed = memory(config, shape(config), 128)
    assert needed["total"] == pytest.approx(measured(config, 128), rel=0.1)
    # Activations weigh enough in the sum to be tested by it.
    assert needed["activations"] > needed["weights"] / 2


def test_half_precision_is_that_of_autocast() -> None:
    words = [*SMALL_MODELS["Transformer"], *SMALL]
    whole = composed(*words, checkpointing=False)
    half = composed(*words, "precision=bf16", checkpointing=False)
    needed = memory(half, shape(half), 128)
    assert needed["total"] == pytest.approx(measured(half, 128), rel=0.1)
    assert needed["activations"] < 0.9 * memory(whole, shape(whole), 128)["activations"]


def test_bytes_are_those_of_new_tensors_until_nothing_refers_to_them() -> None:
    given = torch.ones(100)

    def work() -> torch.Tensor:
        given.mul_(2)
        kept = given[1:] + 1  # 396 bytes, beside a view
        for _ in range(3):
            kept = kept * 2  # one more at a time
        return kept

    with LiveBytes() as live:
        result = work()
        assert live.now == 396
        del result
    assert (live.now, live.peak) == (0, 792)
    assert allocated_bytes(work) == pytest.approx(792, abs=256)  # the allocator rounds up
