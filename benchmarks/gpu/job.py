"""The default job on the device: its perplexity is to lie within the spread of seeds on CPUs.

It is the command of `make train`, as a process, on the documents that `benchmarks.gpu.pack` has
packed, since the default corpus depends on the Python that runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu.setting import Setting, harvest
from chimera.paths import ROOT

JOB = ["mixer=retnet", "quant=bitnet158", "norm=qdyt"]


def main(setting: Setting) -> dict[str, Any]:
    """Train in float32 and, if there is time for it, in bf16."""
    results: dict[str, Any] = {}
    for precision in ("fp32", "bf16"):
        if results and setting.left < 1.2 * results["fp32"]["seconds"]:
            results[precision] = {"error": "no time left"}
            continue
        results[precision] = job(setting, precision)
        print(precision, results[precision], flush=True)
    failed = [f"{p}: {r['error']}" for p, r in results.items() if r.get("code")]
    return {"runs": results, **({"error": "; ".join(failed)} if failed else {})}


def job(setting: Setting, precision: str) -> dict[str, Any]:
    """Train once; final metrics of the run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "train.py", *JOB, f"precision={precision}", "logger=none"]
        command += [f"run_dir={folder}/run", "trainer.progress=none"]
        command += [f"trainer.accelerator={'gpu' if setting.device == 'cuda' else 'cpu'}"]
        if (packed := harvest()) is not None:
            command += [f"data.documents={packed}", f"data.cache_dir={folder}/cache"]
        if setting.tiny:
            command += ["scale=smoke", "trainer.max_steps=2"]
        began = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        seconds = time.monotonic() - began
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
            return {"code": done.returncode, "seconds": seconds, "error": last}
        record = json.loads((Path(folder) / "run" / "run.json").read_text())
    return {"seconds": seconds, "documents": packed is not None, "metrics": record["metrics"]}
