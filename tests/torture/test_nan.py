"""NaN or Inf in loss, gradient or weight under fp32, bf16 and fp16.

The run stops before the update. The emergency checkpoint is finite and equals the state before the
step of a run without the fault. The report is complete. A replay in a new process reproduces the
fault. Without the fault, the run resumes and ends with the numbers of the uninterrupted run.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.torture import job

PARTS = ["learning_rates", "gradients_not_finite", "gradients_large", "weights_not_finite"]
PARTS += ["batch", "memory", "configuration"]
VALUES = {"loss": "inf", "gradient": "nan", "weight": "nan"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_it_stops_the_run_before_the_update(precision: str, kind: str, folder: Path) -> None:
    more = (f"precision={precision}", "trainer.checkpoint_every_n_steps=1")
    reference = job.whole(folder, f"whole-{precision}", *more, "trainer.checkpoint_keep=99")
    # Under fp16 the scaler first attributes infinite gradients to its scale: it skips the step and
    # halves the scale, sixteen times from 65536 to 1.
    scaled = precision == "fp16" and kind == "gradient"
    run = folder / "nan"
    command = job.new(folder, "nan", *more, *(["trainer.max_steps=30"] if scaled else []))
    fault = f"{kind!r}, {VALUES[kind]!r}"
    # The 6th step's second micro-batch: 7 in the first epoch's 4 steps, then 4.
    code, said = job.train(command, f"faults.poison({fault}, micro_batch=11)")
    assert code == 1, said
    assert "Traceback" not in said
    (report,) = run.glob("nan_report-*.json")
    facts = json.loads(report.read_text())
    assert facts["kind"] == kind
    assert facts.keys() >= set(PARTS)
    assert report.with_suffix(".md").read_text().count("\n## ") == len(PARTS)
    assert facts["what"] in said
    assert report.with_suffix(".npz").exists()
    assert facts["step"] == 6 + 16 * scaled

    replay = [f"replay={report}"]
    code, said = job.train(replay, f"faults.poison({fault}, samples={facts['indices'][-1]})")
    assert code == 0, said
    # In the replay, a broken weight is broken from the first micro-batch of the step on.
    assert kind == "weight" or "to the bit" in said
    # Without the fault: the record contains these two.
    assert job.train(replay)[0] == (0 if kind == "weight" else 1)

    emergency = job.load(run, "emergency")
    assert all(t.isfinite().all() for t in emergency["state_dict"].values())
    assert emergency["global_step"] == facts["step"] - 1
    if not scaled:
        good = job.load(reference, f"rolling-{facts['step'] - 1}")
        for state in (emergency["state_dict"], good["state_dict"]):
            for name in [n for n in state if n.endswith("alpha")]:
                del state[name]  # a function of the step, and set before the fault
        for key in ("state_dict", "optimizer_states", "loops"):
            assert job.equal(emergency[key], good[key]), key
    for file in (run / "checkpoints").glob("*"):
        if not file.name.startswith("emergency"):
            file.unlink()
    job.resumed(command, None if scaled else reference, says="emergency.ckpt at step")
