"""Write docs/cards/mixer-<name>.md and docs/choose.md from the records of profiles in the store.

`python -m benchmarks profile mixer=<name>` trains a profile; `python -m benchmarks forms` and
`mixers` measure errors, state and cost. `CHIMERA_STORE` names another store than `store/`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.card import choose, page, radar
from benchmarks.card.published import sources
from benchmarks.card.records import read
from chimera.paths import ROOT, store_root

RESULTS = Path(__file__).parent / "results"


def main(to: Path = ROOT / "docs") -> dict[str, Any]:
    """Write the pages and print which; no results file is written.

    Args:
        to: folder of `cards/` and `choose.md`.

    Raises:
        UserError: the store has no record of a profile.
    """
    profiles = read(store_root())
    cost = _results("mixers")
    machine = str(cost.get("machine", {}).get("processor", "an unknown machine"))
    facts = page.Facts(cost, _results("forms"), machine)
    folder = to / "cards"
    folder.mkdir(parents=True, exist_ok=True)
    for name, profile in profiles.by_mixer.items():
        reference = profiles.by_mixer.get(page.REFERENCE)
        radar.draw(profile, reference, profiles.tasks, folder / f"mixer-{name}.svg")
        text = page.page(profile, profiles, facts)
        (folder / f"mixer-{name}.md").write_text(text, encoding="utf-8")
    (to / "choose.md").write_text(choose.page(profiles, sources(), facts), encoding="utf-8")
    print(f"{len(profiles.by_mixer)} cards and choose.md: {', '.join(profiles.by_mixer)}")
    for why in profiles.left_out:
        print(f"left out: {why}")
    return {}


def _results(name: str) -> dict[str, Any]:
    """Results of a benchmark; empty without."""
    file = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    return found
