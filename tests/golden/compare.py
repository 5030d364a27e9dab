"""Two results of one golden run held against each other, text for text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

#: What `losses.json` holds of a result, and what is compared with it.
RECORDED = ("directory", "metrics", "weights")


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """In what a result differs from the one of before, the first step at which it does first."""
    found = list(_steps(old.get("steps") or {}, new.get("steps") or {}))
    parts = (set(old) | set(new)) - {"steps", "files", "log", "name"}
    for part in sorted(parts):
        if old.get(part) != new.get(part):
            found += _within(part, old.get(part), new.get(part))
    gone = sorted(set(old.get("files") or ()) - set(new.get("files") or ()))
    if gone:
        found.append(f"files that are gone: {', '.join(gone)}")
    if new.get("log") and new["codes"] != old["codes"]:
        found.append(str(new["log"]).strip().splitlines()[-1])
    return found


def _steps(old: dict[str, list[str]], new: dict[str, list[str]]) -> Iterator[str]:
    for column, values in old.items():
        others = new.get(column, [])
        if values == others:
            continue
        pairs = enumerate(zip(values, others, strict=False), 1)
        first = next((step for step, (a, b) in pairs if a != b), None)
        if first is None:
            yield f"{column}: {len(values)} steps, now {len(others)}"
        else:
            yield f"{column} at step {first}: {values[first - 1]}, now {others[first - 1]}"


def _within(part: str, old: Any, new: Any) -> list[str]:
    """The leaves that differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        pairs = ((key, old.get(key), new.get(key)) for key in keys)
        return [line for k, a, b in pairs if a != b for line in _within(f"{part}.{k}", a, b)]
    return [f"{part}: {_short(old)}, now {_short(new)}"]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) < 100 else f"{text[:97]}..."


def interruptions(found: dict[str, dict[str, Any]]) -> list[str]:
    """Whether runs that were killed, stopped or given workers are the uninterrupted run."""
    out = []
    for name in ("killed", "stopped", "workers"):
        if name in found and "whole" in found:
            same = all(found[name].get(k) == found["whole"].get(k) for k in ("steps", "weights"))
            out += [] if same else [f"{name} is not the same as whole"]
    for name, code in (("killed", -9), ("stopped", 130)):
        if name in found and found[name]["codes"][0] != code:
            out.append(f"{name} ended with {found[name]['codes'][0]} before it could be")
    return out


def recorded(found: dict[str, Any]) -> dict[str, Any]:
    """What `losses.json` keeps of a result."""
    steps = found.get("steps") or {}
    return {
        **{key: " ".join(steps.get(key) or ()) for key in ("loss", "grad_norm")},
        **{key: found.get(key) for key in RECORDED},
    }
