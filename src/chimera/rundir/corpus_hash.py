"""Whether runs were trained on the same tokens: their hash is in each record.

`data=pydocs` takes its text from the installed Python and packages, so the same settings give other
tokens elsewhere; a file of text may have changed too.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from chimera.errors import UserError, one_line
from chimera.rundir.safe_io import read_json

#: Keys of run.json's `data`: hash of the settings that decide the tokens, and of the tokens.
SETTINGS = "settings_sha256"
TOKENS = "tokens_sha256"
#: Settings of data and tokenizer without a say in the tokens.
FREE = ("batch_size", "num_workers", "processes", "cache_dir", "num_threads")
ADVICE = (
    "a file or a data set changed, or, with data=pydocs, the installed Python and packages"
    " (data.documents=<file> gives every machine one text)"
)


class Text(NamedTuple):
    """Hashes of the settings of a run's text, and of its tokens."""

    settings: str
    tokens: str


def settings_hash(config: Mapping[str, Any]) -> str:
    """Hash of the settings of a configuration that decide the tokens."""
    nodes = [
        {key: value for key, value in config[group].items() if key not in FREE}
        for group in ("data", "tokenizer")
    ]
    if config.get("init_run"):  # the tokenizer is that of the run that is named
        nodes[1].pop("path", None)
        nodes.append({"init_run": config["init_run"]})
    return hashlib.sha256(json.dumps(nodes, sort_keys=True, default=str).encode()).hexdigest()[:16]


def text_of(record: Mapping[str, Any]) -> Text | None:
    """The hashes in a record, which may be a stranger's; None in those of older versions."""
    data = record.get("data")
    if not isinstance(data, dict):
        return None
    found = data.get(SETTINGS), data.get(TOKENS)
    return Text(*(one_line(text)[:64] for text in found)) if all(found) else None


def apart(texts: Iterable[Text | None]) -> str:
    """One sentence if runs of the same settings have different tokens; else empty."""
    by_settings: dict[str, Counter[str]] = {}
    for text in texts:
        if text is not None:
            by_settings.setdefault(text.settings, Counter())[text.tokens] += 1
    other = [counts for counts in by_settings.values() if len(counts) > 1]
    if not other:
        return ""
    groups = (
        " and ".join(f"{n} run{'s' * (n != 1)} on {tokens[:8]}" for tokens, n in counts.items())
        for counts in other
    )
    return (
        f"Runs with the same settings were trained on different text ({'; '.join(groups)}, by the"
        f" hash of the tokens), so their numbers cannot be compared: {ADVICE}"
    )


def check_text(run: Path, tokens: str | None) -> None:
    """Refuse to go on with a run on other text than it began with.

    Args:
        run: its directory; environment.json there has the hash of its tokens.
        tokens: hash of the tokens now.

    Raises:
        UserError: they differ.
    """
    before = read_json(run / "environment.json").get(TOKENS)
    if before and tokens and before != tokens:
        raise UserError(
            f"{run} began on other text (tokens {one_line(before)[:8]}, here {tokens[:8]}):"
            f" {ADVICE}; resume it on the text that it began on, or start over with overwrite=true"
        )
