"""What the tables would cost at scale=medium: `python -m benchmarks not_run`.

Every table of `experiments/` is estimated as `chimera estimate` does, with three seeds and two runs
at a time on this machine; a few steps of the first configurations are measured, the others follow
from their FLOPs. Runs that several tables share, or start from, count in each of them. The data
that some tables need are below the folder `CHIMERA_DATA` (default: shared/data beside the
checkout). docs/results.md lists the tables without a report at this scale, from this benchmark's
results.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chimera.cli.estimate import totals
from chimera.config.tables import tables
from chimera.errors import UserError, one_line
from chimera.paths import ROOT

if TYPE_CHECKING:
    from chimera.sweep.cost import Estimate
    from chimera.sweep.plan import Job

RESULTS = ROOT / "benchmarks" / "results" / "not_run.json"
DATA = Path(os.environ.get("CHIMERA_DATA", ROOT.parent / "shared" / "data"))
#: How the folder is written in the commands that are shown.
SHOWN = "$CHIMERA_DATA"
SCALE, SEEDS, WORKERS = "medium", (0, 1, 2), 2
#: Seconds of steps for a configuration, and of all measurements.
SECONDS, LIMIT = 1.0, 230.0

_COLA = ("data=glue", f"data.path={SHOWN}/glue")
_SPANISH = (
    "data=text",
    f"data.path={SHOWN}/es_text/literature_train.txt",
    f"data.valid_path={SHOWN}/es_text/literature_valid.txt",
)
_BODIES = ",".join(word.replace("=", ":", 1) for word in _SPANISH)
_ALPACA = f"data.path={SHOWN}/instruct/alpaca_2000.json"
#: Overrides of tables whose stand-in data are not the paper's kind.
MORE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("saidl/adapters", "saidl/epochs", "saidl/targets", "saidl/lambda"), _COLA),
    "saidl/tasks": _COLA[1:],
    "bitnet_qdyt/glue": _COLA[1:],
    **dict.fromkeys(("titan/ablations", "titan/pattern", "titan/baselines"), _SPANISH),
    "titan/spanish": (f"data.path={SHOWN}/es_glue", f"init_row={{{_BODIES}}}"),
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


def planned(table: str) -> list[Job]:
    """The jobs of a table with one seed, after those that have to be trained first.

    Raises:
        UserError: the table cannot be run here.
    """
    from chimera.sweep.expand import expand

    for key, value in ENVIRONMENT.get(table, {}).items():
        os.environ[key] = value.replace(SHOWN, str(DATA))
    words = [text.replace(SHOWN, str(DATA)) for text in overrides(table)]
    return expand([f"seed={SEEDS[0]}" if text.startswith("seed=") else text for text in words])


def estimates(chosen: list[str]) -> dict[str, Any]:
    """Runs, steps and seconds of tables on this machine; `why` for one that cannot be estimated.

    Seconds are None where a run's are not known: its examples have not been prepared here. The
    first row of each table is measured before any other. Seeds take the same time.
    """
    from chimera.sweep.estimate import Estimator

    jobs: dict[str, list[Job]] = {}
    found: dict[str, Any] = {}
    for table in chosen:
        try:
            jobs[table] = planned(table)
        except UserError as error:
            found[table] = {"why": one_line(error).replace(str(DATA), SHOWN)}
    order = [(table, at) for table, of in jobs.items() for at in range(len(of))]
    order.sort(key=lambda item: item[1] != len(jobs[item[0]]) - 1)  # the last is no prerequisite
    estimator = Estimator(seconds=SECONDS, limit=LIMIT, workers=WORKERS)
    done = estimator.all([jobs[table][at] for table, at in order])
    for table in jobs:
        runs = []
        for (name, at), each in zip(order, done, strict=True):
            if name == table:
                seeded = any(text.startswith("seed=") for text in jobs[table][at].overrides)
                runs += [each] * (len(SEEDS) if seeded else 1)
        found[table] = summed(runs)
        print(f"{table:24} {found[table]}", file=sys.stderr, flush=True)
    return found


def summed(runs: Sequence[Estimate]) -> dict[str, Any]:
    """Runs of a table, and steps and seconds of those that are not done.

    Seconds are None if those of a run that is not done are unknown.
    """
    sums = totals(runs, WORKERS)
    unknown = any(each.how != "done" and not each.tokens_per_second for each in runs)
    ways = [each.how.partition(",")[0].partition(" ")[0] for each in runs]
    return {
        "runs": sums["runs"],
        "steps": sums["steps"],
        "seconds": None if unknown else sums["seconds"],
        "from": {way: ways.count(way) for way in dict.fromkeys(ways)},
    }


def main() -> dict[str, Any]:
    """Estimate every table; return the contents of the results file.

    `TABLES="saidl/positions ours/routing"` in the environment names some; the others keep theirs.
    """
    chosen = os.environ.get("TABLES", "").split()
    found = (known() if chosen else {}) | estimates(chosen or tables())
    found = {table: found[table] for table in tables() if table in found}
    return {"scale": SCALE, "seeds": list(SEEDS), "workers": WORKERS, "tables": found}


def known() -> dict[str, Any]:
    """Estimates of the results file; empty without one."""
    if not RESULTS.exists():
        return {}
    tables_of: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))["tables"]
    return tables_of
