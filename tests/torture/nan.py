"""R4: NaN or Inf in loss, gradient, weight or input under fp32, bf16 and fp16.

Each case checks five things. The run stops before the update. The emergency checkpoint is finite
and equals the state before the step of a run without the fault. The report is complete. A replay in
a new process reproduces the fault. Without the fault, the run resumes and ends with the numbers of
the uninterrupted run.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import torch

from chimera.task.mlm import MaskedLM
from tests.torture import job

STEP, MICRO = 6, 11  # the 6th step's second micro-batch: 7 in the first epoch's 4 steps, then 4
PARTS = (
    "learning_rates",
    "gradients_not_finite",
    "gradients_large",
    "weights_not_finite",
    "batch",
    "memory",
    "configuration",
)


class Poison:
    """A numerical fault in batches of certain samples, so that a replay has the fault too.

    Args:
        kind: place of the fault: loss, gradient, weight or input.
        value: NaN or Inf.
        samples: indices of the samples; None: those of micro-batch MICRO.
    """

    def __init__(self, kind: str, value: float, samples: list[int] | None = None) -> None:
        self.kind, self.value, self.samples = kind, value, samples
        self.calls = 0

    def plant(self) -> None:
        original = MaskedLM._predict
        poison = self

        def predict(task: MaskedLM, batch: dict[str, Any]) -> Any:
            poison.calls += task.training
            if poison.samples is None and task.training and poison.calls == MICRO:
                poison.samples = batch["indices"].tolist()
            hit = task.training and poison.hits(batch)
            if hit:
                poison.before(task, batch)
            loss, *rest = original(task, batch)
            return (poison.after(task, loss) if hit else loss), *rest

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
        if self.kind == "loss":
            return loss + self.value
        if self.kind == "gradient":  # the forward pass stays finite
            table = next(task.model.parameters())
            table.register_hook(lambda g: torch.full_like(g, self.value))
        return loss


def case(folder: Path, kind: str, value: float, precision: str) -> list[str]:
    """Run a case; return its failures, empty if there are none."""
    log, to, reference = folder / "nan.log", folder / "nan", folder / f"whole-{precision}"
    shutil.rmtree(to, ignore_errors=True)
    log.unlink(missing_ok=True)
    more = (f"precision={precision}", "trainer.max_steps=14", "trainer.checkpoint_every_n_steps=1")
    keep = ("trainer.checkpoint_keep=99",)
    if not reference.exists():
        code = job.train(job.arguments(folder, reference, *more, *keep), folder / "whole.log")
        assert code == 0, (folder / "whole.log").read_text()
    # Under fp16 the scaler first attributes infinite gradients to its scale: it skips the step and
    # halves the scale, sixteen times from 65536 to 1.
    scaled = precision == "fp16" and kind == "gradient"
    command = job.arguments(folder, to, *more, *(["trainer.max_steps=30"] if scaled else []))
    code = job.train(command, log, lambda: Poison(kind, value).plant())
    text = log.read_text()
    wrong = [] if code == 1 and "Traceback" not in text else [f"exit code {code}"]
    reports = sorted(to.glob("nan_report-*.json"))
    if len(reports) != 1:
        return [*wrong, f"{len(reports)} reports: {text[-400:]}"]
    facts = json.loads(reports[0].read_text())
    wrong += _complete(facts, reports[0], kind, text)
    before = facts["step"] - 1
    wrong += _emergency(to, reference, before, kind, precision)
    samples = facts["indices"][-1]
    recorded = kind in ("input", "weight")  # the recorded batch or state contains the fault
    code = job.train([f"replay={reports[0]}"], log, lambda: Poison(kind, value, samples).plant())
    # In the replay, a broken weight is broken from the first micro-batch of the step on.
    if code != 0 or (kind != "weight" and "to the bit" not in log.read_text()):
        wrong.append(f"replay: exit code {code}: {log.read_text()[-300:]}")
    code = job.train([f"replay={reports[0]}"], log)
    wrong += [] if code == (0 if recorded else 1) else [f"replay without the fault: {code}"]
    if scaled:
        wrong += [] if facts["step"] == STEP + 16 else [f"stopped at step {facts['step']}"]
    return wrong + _resume(folder, to, None if scaled else reference, command)


def _resume(folder: Path, to: Path, reference: Path | None, command: list[str]) -> list[str]:
    """Resume without the fault, from the emergency checkpoint only; return what differs."""
    for file in (to / "checkpoints").glob("*"):
        if not file.name.startswith("emergency"):
            file.unlink()
    log = folder / "mended.log"
    log.unlink(missing_ok=True)
    if job.train(command, log) or "emergency.ckpt at step" not in log.read_text():
        return [f"did not resume: {log.read_text()[-300:]}"]
    differing = job.differences(to, reference) if reference else []
    return [f"{each} differs after resuming" for each in differing]


def _complete(facts: dict[str, Any], report: Path, kind: str, text: str) -> list[str]:
    wrong = [] if facts["kind"] == kind else [f"called {facts['kind']}"]
    markdown = report.with_suffix(".md").read_text()
    wrong += [f"no {part}" for part in PARTS if part not in facts]
    wrong += [] if markdown.count("\n## ") == len(PARTS) else ["markdown lacks a part"]
    wrong += [] if facts["what"] in text else ["not shown"]
    wrong += [] if report.with_suffix(".npz").exists() else ["no batch"]
    return wrong


def _emergency(to: Path, reference: Path, before: int, kind: str, precision: str) -> list[str]:
    """Compare the emergency checkpoint with the state before the step of the faultless run."""
    emergency = torch.load(to / "checkpoints" / "emergency.ckpt", weights_only=True)
    finite = all(bool(torch.isfinite(t).all()) for t in emergency["state_dict"].values())
    wrong = [] if finite else ["emergency weights not finite"]
    if emergency["global_step"] != before:
        return [*wrong, f"emergency of step {emergency['global_step']}, not {before}"]
    if precision == "fp16" and kind == "gradient":  # the scaler skipped steps before
        return wrong
    good = torch.load(reference / "checkpoints" / f"rolling-{before}.ckpt", weights_only=True)
    for state in (emergency["state_dict"], good["state_dict"]):
        # α is a function of the step and set before the fault.
        for name in [n for n in state if n.endswith("alpha")]:
            del state[name]
    for key in ("state_dict", "optimizer_states", "loops"):
        wrong += [] if job.equal(emergency[key], good[key]) else [f"emergency {key} differs"]
    return wrong


CASES: list[tuple[str, float, str]] = [
    (kind, value, precision)
    for precision in ("fp32", "bf16", "fp16")
    for kind, value in (
        ("loss", math.inf),
        ("gradient", math.nan),
        ("weight", math.nan),
        ("input", math.nan),
    )
]


def r4(folder: Path) -> tuple[int, int]:
    """Run twelve cases; return the number that passed and the number of all."""
    good = 0
    for kind, value, precision in CASES:
        wrong = case(folder, kind, value, precision)
        good += not wrong
        print(f"R4  {kind} {precision}: {'; '.join(wrong) or 'passed'}", flush=True)
    return good, len(CASES)
