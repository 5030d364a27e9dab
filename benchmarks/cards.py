"""Write docs/cards/mixer-<name>.md and docs/choose.md from the records of profiles in the store.

    python -m benchmarks cards                         from store/ into docs/
    python -m benchmarks cards store=<folder> to=<folder>

`python -m benchmarks profile mixer=<name>` trains a profile; `python -m benchmarks forms` and
`mixers` measure errors, state and cost.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.card import choose, longer, page, radar
from benchmarks.card.published import sources
from benchmarks.card.stored import read as read_store
from benchmarks.card.stored import read_longer
from chimera.config.arguments import read
from chimera.errors import UserError
from chimera.paths import EXPERIMENTS, ROOT
from chimera.rundir.safe_io import make_folder

RESULTS = Path(__file__).parent / "results"
USAGE = "python -m benchmarks cards [store=<folder>] [to=<folder>]"


@dataclass(frozen=True)
class Options:
    """Folders.

    Args:
        store: with the records; default the run store.
        to: of `cards/` and `choose.md`; default docs/.
    """

    store: Path | None = None
    to: Path | None = None


def main(words: Sequence[str] = ()) -> dict[str, Any]:
    """Write the pages and print which; no results file is written.

    Raises:
        UserError: a bad word, or the named store has no record of a profile.
    """
    options = read(Options, words, USAGE)
    store = options.store or EXPERIMENTS
    try:
        profiles = read_store(store)
    except UserError as error:
        if words:
            raise
        print(error)  # among all benchmarks one that lacks its input is skipped
        return {}
    cost = _results("mixers")
    machine = str(cost.get("machine", {}).get("processor", "an unknown machine"))
    facts = page.Facts(cost, _results("forms"), machine)
    to = options.to or ROOT / "docs"
    folder = to / "cards"
    make_folder(folder, of=to, key="to")
    reference = profiles.by_mixer.get(page.REFERENCE)
    for name in profiles.plain:
        profile = profiles.by_mixer[name]
        radar.draw(profile, reference, profiles.tasks, folder / f"mixer-{name}.svg")
        text = page.page(profile, profiles, facts)
        (folder / f"mixer-{name}.md").write_text(text, encoding="utf-8")
    more = longer.gather(read_longer(store), profiles)
    (to / "choose.md").write_text(choose.page(profiles, sources(), facts, more), encoding="utf-8")
    print(f"{len(profiles.plain)} cards and choose.md: {', '.join(profiles.by_mixer)}")
    for why in profiles.left_out:
        print(f"left out: {why}")
    return {}


def _results(name: str) -> dict[str, Any]:
    """Results of a benchmark; empty without."""
    file = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    return found
