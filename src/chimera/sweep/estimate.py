"""Time, memory and disk of runs before they start.

A run's time is its start-up, its steps, validations, test and checkpoints. What these take is known
from the first of these sources that there is:

    done      the run is finished: nothing is left to do
    like …    a finished run on this machine with the same parts and shape
    measured  a few real steps, in a process of its own (`train.warmup`)
    FLOPs     FLOPs of the steps, divided by the rate of matrix products and the share of it that
              the measured configurations reach, else that of earlier runs, else `SHARE`
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from chimera.rundir.store import is_stored
from chimera.sweep.cost import (
    FILES,
    ROW,
    Estimate,
    bytes_saved,
    checkpoints_kept,
    free_memory,
    of_measured,
    passes,
    size_of,
)
from chimera.sweep.known import Known, KnownRuns, likeness
from chimera.sweep.local import environment_of
from chimera.sweep.plan import Job
from chimera.train.overview import overview
from chimera.train.prerequisites import missing
from chimera.train.rate import rate_of
from chimera.train.warmup import Measured

#: Share of the rate of products that a step reaches, if no run says more.
SHARE = 0.3
#: Seconds that a process may take beside its steps before it is ended.
PATIENCE = 120.0
#: Seconds of a test batch without gradients as a share of a step, where no validation was measured.
FORWARD = 0.35


class Estimator:
    """Estimates runs one after the other.

    Args:
        seconds: of training to measure for each configuration; 0 measures nothing.
        limit: seconds for all measurements.
        workers: runs at the same time, which share the processor.
        say: is told what is measured.
        root: folder of finished runs; None: that of this process.
    """

    def __init__(
        self,
        *,
        seconds: float,
        limit: float,
        workers: int = 1,
        say: Callable[[str], None] = lambda text: None,
        root: Path | None = None,
    ) -> None:
        self.seconds, self.workers, self.say = seconds, workers, say
        self.known = KnownRuns(root)
        self._until = time.monotonic() + limit
        self._measured: dict[str, Measured | str] = {}
        self._shares: list[float] = []
        self._rates: dict[str, float] = {}
        used = resource.getrusage(resource.RUSAGE_SELF)
        self._start, self._resident = time.process_time(), 1024.0 * used.ru_maxrss

    def all(self, jobs: Sequence[Job]) -> list[Estimate]:
        """Estimates of jobs, in their order; what can be measured is measured first."""
        facts: dict[str, dict[str, Any]] = {}
        for job in jobs:
            if job.directory.is_done(job.config) or self.known.like(job.config):
                continue
            if (key := likeness(job.config)) not in facts:
                facts[key] = overview(job.config)
                self._measure(job, key, facts[key])
        return [self._of(job, facts.get(likeness(job.config))) for job in jobs]

    def _of(self, job: Job, facts: dict[str, Any] | None) -> Estimate:
        steps = job.config["trainer"]["max_steps"] or 0
        if job.directory.is_done(job.config):
            where = f"records in {job.directory.path.parent}" if is_stored(job.directory) else ""
            return Estimate(job.label, "done", 0, None, 0.0, 0.0, 0.0, where)
        begun = int(job.directory.status().get("step") or 0)
        if facts is None:
            known = self.known.like(job.config)
            assert known is not None
            steps = steps or known.steps
            found = Estimate(
                job.label,
                f"like {known.path.name}",
                steps,
                known.tokens_per_second,
                self._start + known.seconds * steps / max(1, known.steps),
                known.memory,
                disk_like(job, known, steps),
            )
        else:
            measured = self._measured.get(likeness(job.config))
            if isinstance(measured, Measured):
                found = of_measured(job, measured)
            else:
                found = self._of_flops(job, facts, measured or "")
        if not 0 < begun < found.steps:
            return found
        left = 1 - begun / found.steps
        note = "; ".join(text for text in (f"goes on at step {begun}", found.note) if text)
        seconds = self._start + max(0.0, found.seconds - self._start) * left
        return replace(found, steps=found.steps - begun, seconds=seconds, note=note)

    def _measure(self, job: Job, key: str, facts: dict[str, Any]) -> None:
        if why := self._obstacle(job, facts):
            self._measured[key] = why
            return
        self.say(f"measuring {job.label} …")
        local = str(job.config["launcher"]["_target_"]).endswith("Local")
        threads = job.config["launcher"].get("threads") if local else None
        environment = environment_of(0, self.workers, threads, 0) if local else dict(os.environ)
        asked = {"config": job.config, "seconds": self.seconds, "began": time.time()}
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-m", "chimera.train.warmup"],
                input=json.dumps(asked, default=str),
                capture_output=True,
                text=True,
                env={**environment, "HF_HUB_OFFLINE": "1"},
                timeout=min(PATIENCE + 3 * self.seconds, self._until - time.monotonic()),
            )
        except subprocess.TimeoutExpired:
            self._measured[key] = "its steps took too long to be measured"
            return
        self._measured[key] = found = _read(done)
        if isinstance(found, Measured) and facts["flops"]:
            rate = facts["flops"]["training"] * found.tokens / found.step
            self._shares.append(rate / self._rate(job.config))

    def _obstacle(self, job: Job, facts: dict[str, Any]) -> str:
        """Why a configuration is not measured; empty if it is."""
        trainer = job.config["trainer"]
        if self.seconds <= 0:
            return "seconds=0"
        if (first := next(missing(job.config, list(job.overrides)), None)) is not None:
            return f"its {first.role} is not trained yet"
        if trainer["devices"] > 1 or (trainer["num_nodes"] or 1) > 1:
            return "a run of several processes is not measured"
        if time.monotonic() + self.seconds > self._until:
            return "limit= was reached"
        if not _gpu(job.config) and facts["memory"]["total"] > 0.8 * free_memory():
            return "it would not fit into the free memory"
        step = self._step_of_flops(job.config, facts)
        if step is not None and step > max(self.seconds, 1.0):
            return f"a step takes about {step:,.0f} s"
        return ""

    def _of_flops(self, job: Job, facts: dict[str, Any], why: str) -> Estimate:
        config, step = job.config, self._step_of_flops(job.config, facts)
        total, memory = config["trainer"]["max_steps"] or 0, facts["memory"]["total"]
        memory += 0.0 if _gpu(config) else self._resident
        frozen = facts["parameters"]["total"] - facts["trained"]
        saved = bytes_saved(facts["trained"], frozen)
        disk = FILES + ROW * total + saved * checkpoints_kept(config, total, None)
        notes = [why] if why != "seconds=0" else []
        if not total:
            notes.append("the number of steps is known when the data are prepared")
        if step is None:
            notes.append("FLOPs cannot be counted, so the time is unknown")
        share = f"{self._share:.0%} of {self._rate(config) / 1e9:,.0f} GFLOP/s"
        rate = _tokens(config) / step if step else None
        batches = passes(config, total) * (config["trainer"]["limit_val_batches"] or 0)
        batches += config["trainer"]["limit_test_batches"] or 0
        parts = config["trainer"]["accumulate_grad_batches"]
        seconds = self._start + (step or 0.0) * (total + FORWARD * batches / parts)
        how = f"FLOPs, {share}"
        return Estimate(job.label, how, total, rate, seconds, memory, disk, "; ".join(notes))

    @property
    def _share(self) -> float:
        if self._shares:
            return sorted(self._shares)[len(self._shares) // 2]
        return self.known.utilisation or SHARE

    def _step_of_flops(self, config: dict[str, Any], facts: dict[str, Any]) -> float | None:
        """Seconds of a step by its FLOPs; None if they are not known."""
        if not facts["flops"]:
            return None
        devices = config["trainer"]["devices"] * (config["trainer"]["num_nodes"] or 1)
        rate = self._rate(config) * self._share * (devices if _gpu(config) else 1)
        return float(facts["flops"]["training"] * _tokens(config) / rate)

    def _rate(self, config: dict[str, Any]) -> float:
        precision = config["precision"]
        if precision not in self._rates:
            device = torch.device("cuda" if _gpu(config) else "cpu")
            self._rates[precision] = rate_of(device, precision, keep=False)
        return self._rates[precision]


def _read(done: subprocess.CompletedProcess[str]) -> Measured | str:
    """What a measurement printed, or why it failed."""
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        found = json.loads(lines[-1])
        return str(found["why"]) if "why" in found else Measured(**found)
    if done.returncode < 0:
        return f"its measurement was ended by signal {-done.returncode} (out of memory?)"
    said = done.stderr.strip().splitlines()[-1:] or ["no word"]
    return f"its measurement failed: {said[0][:200]}"


def disk_like(job: Job, known: Known, steps: int) -> float:
    """Bytes of a run like a finished one; a record of the run store has no checkpoints."""
    if known.checkpoint is None:
        return float(size_of(known.path))
    return FILES + ROW * steps + known.checkpoint * checkpoints_kept(job.config, steps, None)


def _tokens(config: dict[str, Any]) -> float:
    """Tokens of an optimiser step without padding."""
    data = config["data"]
    length = data.get("seq_len") or config["model"]["max_len"]
    return float(data["batch_size"] * length * config["trainer"]["accumulate_grad_batches"])


def _gpu(config: dict[str, Any]) -> bool:
    return torch.cuda.is_available() and config["trainer"]["accelerator"] != "cpu"
