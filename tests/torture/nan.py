"""NaN or Inf in loss, gradient, weight or input under fp32, bf16 and fp16.

Each case checks five things. The run stops before the update. The emergency checkpoint is finite
and equals the state before the step of a run without the fault. The report is complete. A replay in
a new process reproduces the fault. Without the fault, the run resumes and ends with the numbers of
the uninterrupted run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from chimera.task.mlm import MaskedLM
from tests.torture import job

STEP, MICRO = 6, 11  # the 6th step's second micro-batch: 7 in the first epoch's 4 steps, then 4
PARTS = ["learning_rates", "gradients_not_finite", "gradients_large", "weights_not_finite"]
PARTS += ["batch", "memory", "configuration"]


class Poison:
    """A numerical fault in batches of certain samples, so that a replay has the fault too.

    Args:
        kind: place of the fault: loss, gradient, weight or input.
        value: NaN or Inf.
        samples: indices of the samples; None: those of micro-batch MICRO.
    """

    def __init__(self, kind: str, value: float, samples: list[int] | None = None) -> None:
        self.kind = kind
        self.value = value
        self.samples = samples
        self.calls = 0

    def plant(self) -> None:
        original = MaskedLM._predict

        def predict(task: MaskedLM, batch: dict[str, Any]) -> Any:
            self.calls += task.training
            if self.samples is None and task.training and self.calls == MICRO:
                self.samples = batch["indices"].tolist()
            hit = task.training and self.hits(batch)
            if hit:
                self.before(task, batch)
            loss, *rest = original(task, batch)
            return (self.after(task, loss) if hit else loss), *rest

        MaskedLM._predict = predict  # type: ignore[method-assign]

    def hits(self, batch: dict[str, Any]) -> bool:
        """Whether the batch has exactly the samples; other epochs group them differently."""
        return batch["indices"].tolist() == self.samples

    def before(self, task: MaskedLM, batch: dict[str, Any]) -> None:
        if self.kind == "weight":
            with torch.no_grad():
                next(task.model.parameters()).view(-1)[3] = self.value
        if self.kind == "input":  # a batch in which nothing is masked
            batch["index"], batch["targets"] = batch["index"][:0], batch["targets"][:0]

    def after(self, task: MaskedLM, loss: torch.Tensor) -> torch.Tensor:
        if self.kind == "gradient":  # the forward pass stays finite
            table = next(task.model.parameters())
            table.register_hook(lambda g: torch.full_like(g, self.value))
        return loss + self.value if self.kind == "loss" else loss


def case(folder: Path, kind: str, value: float, precision: str) -> list[str]:
    """Run a case; return its failures, empty if there are none."""
    more = (f"precision={precision}", "trainer.checkpoint_every_n_steps=1")
    reference = job.whole(folder, f"whole-{precision}", *more, "trainer.checkpoint_keep=99")
    # Under fp16 the scaler first attributes infinite gradients to its scale: it skips the step and
    # halves the scale, sixteen times from 65536 to 1.
    scaled = precision == "fp16" and kind == "gradient"
    command = job.new(folder, "nan", *more, *(["trainer.max_steps=30"] if scaled else []))
    code, said = job.attempt(command, Poison(kind, value).plant)
    reports = sorted((folder / "nan").glob("nan_report-*.json"))
    if code != 1 or "Traceback" in said or len(reports) != 1:
        return [f"exit code {code}, {len(reports)} reports: {said[-400:]}"]
    facts = json.loads(reports[0].read_text())
    wrong = [*_complete(facts, reports[0], kind, said), *_replayed(reports[0], facts, kind, value)]
    if scaled:
        wrong += [] if facts["step"] == STEP + 16 else [f"stopped at step {facts['step']}"]
    wrong += _emergency(folder / "nan", None if scaled else reference, facts["step"] - 1)
    for file in (folder / "nan/checkpoints").glob("*"):
        if not file.name.startswith("emergency"):
            file.unlink()
    says = "emergency.ckpt at step"
    return wrong + job.resumed(command, None if scaled else reference, says)


def _complete(facts: dict[str, Any], report: Path, kind: str, said: str) -> Iterator[str]:
    held = {
        f"called {facts['kind']}": facts["kind"] == kind,
        **{f"no {part}": part in facts for part in PARTS},
        "a part of the text": report.with_suffix(".md").read_text().count("\n## ") == len(PARTS),
        "not shown": facts["what"] in said,
        "no batch": report.with_suffix(".npz").exists(),
    }
    return (name for name, good in held.items() if not good)


def _replayed(report: Path, facts: dict[str, Any], kind: str, value: float) -> Iterator[str]:
    poison = Poison(kind, value, facts["indices"][-1])
    code, said = job.attempt([f"replay={report}"], poison.plant)
    # In the replay, a broken weight is broken from the first micro-batch of the step on.
    if code != 0 or (kind != "weight" and "to the bit" not in said):
        yield f"replay: exit code {code}: {said[-300:]}"
    code, _ = job.attempt([f"replay={report}"])
    if code != (0 if kind in ("input", "weight") else 1):  # the record contains these faults
        yield f"replay without the fault: {code}"


def _emergency(run: Path, reference: Path | None, step: int) -> Iterator[str]:
    """Compare the emergency checkpoint with the state before the step of the faultless run."""
    emergency = job.load(run, "emergency")
    if not all(bool(t.isfinite().all()) for t in emergency["state_dict"].values()):
        yield "emergency weights not finite"
    if emergency["global_step"] != step:
        yield f"emergency of step {emergency['global_step']}, not {step}"
    elif reference:
        good = job.load(reference, f"rolling-{step}")
        for state in (emergency["state_dict"], good["state_dict"]):
            for name in [n for n in state if n.endswith("alpha")]:
                del state[name]  # a function of the step, and set before the fault
        for key in ("state_dict", "optimizer_states", "loops"):
            if not job.equal(emergency[key], good[key]):
                yield f"emergency {key} differs"


VALUES = {"loss": math.inf, "gradient": math.nan, "weight": math.nan, "input": math.nan}
CASES = {
    f"{kind} in {precision}": partial(case, kind=kind, value=value, precision=precision)
    for precision in ("fp32", "bf16", "fp16")
    for kind, value in VALUES.items()
}
