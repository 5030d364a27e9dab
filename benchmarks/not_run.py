"""What the tables would cost at scale=medium, estimated once: three seeds, two runs at a time.

docs/results.md lists the tables without a report at this scale, from `results/not_run.json`. The
data that some tables need are below the folder `CHIMERA_DATA` (default: shared/data beside the
checkout).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from chimera.paths import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "not_run.json"
DATA = Path(os.environ.get("CHIMERA_DATA", ROOT.parent / "shared" / "data"))
#: How the folder is written in the commands that are shown.
SHOWN = "$CHIMERA_DATA"
SCALE, SEEDS, WORKERS = "medium", (0, 1, 2), 2

_COLA = ("data=glue", f"data.path={SHOWN}/glue")
_SPANISH = (
    "data=text",
    f"data.path={SHOWN}/es_text/literature_train.txt",
    f"data.valid_path={SHOWN}/es_text/literature_valid.txt",
)
_BODIES = tuple(f"needs.{word}" for word in _SPANISH)
_ALPACA = f"data.path={SHOWN}/instruct/alpaca_2000.json"
#: Overrides of tables whose stand-in data are not the paper's kind.
MORE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("saidl/adapters", "saidl/epochs", "saidl/targets", "saidl/lambda"), _COLA),
    "saidl/tasks": _COLA[1:],
    "bitnet_qdyt/glue": _COLA[1:],
    **dict.fromkeys(("titan/ablations", "titan/pattern", "titan/baselines"), _SPANISH),
    "titan/spanish": (f"data.path={SHOWN}/es_glue", *_BODIES),
    "tptt/variants": (
        f"model.name={SHOWN}/models/stories260k",
        "model.pretrained=true",
        _ALPACA,
    ),
    "tptt/training": (_ALPACA,),
    "tptt/mmlu": (_ALPACA, f"task.mmlu={SHOWN}/mmlu"),
}
#: Rows of tables that the folder has data for; of PAWS-X and XNLI it has no Spanish training set.
ROWS = {"titan/spanish": "glob(*_stsb)"}
#: Variables of the environment that tables need.
ENVIRONMENT = {
    "ours/multilingual": {
        "CHIMERA_ENGLISH": f"{SHOWN}/en_text/wiki_demo.txt",
        "CHIMERA_SPANISH": f"{SHOWN}/es_text/literature_train.txt",
        "CHIMERA_SPANISH_VALID": f"{SHOWN}/es_text/literature_valid.txt",
    }
}


def overrides(table: str) -> list[str]:
    """Overrides of the command that trains a table, with the folder as it is shown."""
    paper, _, name = table.partition("/")
    seeds = ",".join(map(str, SEEDS))
    chosen = f"+{table}={ROWS[table]}" if table in ROWS else f"+{paper}={name}"
    return [
        chosen, f"scale={SCALE}", *MORE.get(table, ()), f"seed={seeds}",
        f"workers={WORKERS}",
    ]  # fmt: skip


def command(table: str) -> str:
    """The command that trains a table, as one types it."""
    before = [f"{key}={value}" for key, value in ENVIRONMENT.get(table, {}).items()]
    words = [_typed(text) for text in overrides(table)]
    return " ".join([*before, "python train.py -m", *words])


def _typed(text: str) -> str:
    """An override as a shell takes it; a variable stays one in double quotes."""
    quote = "'" if "(" in text else '"' if "{" in text else ""
    return f"{quote}{text}{quote}"


def known() -> dict[str, Any]:
    """Estimates of the results file; empty without one."""
    if not RESULTS.exists():
        return {}
    tables_of: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))["tables"]
    return tables_of
