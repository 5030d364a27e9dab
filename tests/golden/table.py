"""`python -m tests.golden base=<commit> --table`: numbers of before and now, and why they differ.

A difference needs a cause that the command line chooses; one without is counted as a failure.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tests.golden.combinations import KNOWN, choices

#: The default job and the twenty-odd command lines that presets, tables and README use most.
MOST_USED = (
    *("default", "attention", "gqa-int8", "sliding-window", "linear", "retnet", "retnet-decoder"),
    *("aft", "delta", "deltaproduct", "liza", "mamba", "mlstm", "slstm", "ode", "titan6"),
    *("titan-memory", "routed", "whole", "bf16", "fp16", "loops", "lora", "sora", "cola"),
    *("hf-llama", "instruct", "row", "preset"),
)
#: Presets with dropout; that of `preset=titan_bert_ultra` has Mamba in its pattern, too.
QDYT, TITAN = "+bitnet_qdyt/", "preset=titan_bert"
Words, Chosen = str, dict[str, str]


def _values(words: Words, key: str) -> str:
    """Value of a key of the command line; empty without."""
    found = [word.partition("=")[2] for word in words.split() if word.startswith(f"{key}=")]
    return found[-1] if found else ""


def _drops(words: Words, chosen: Chosen) -> bool:
    if chosen["task"] == "glue" or (chosen["adapter"] == "liza" and "model=hf" in words):
        return True  # dropout 0.1 in the classifier's head; 0.05 in the LoRA of a graft
    if QDYT in words or TITAN in words:
        return True
    return any(float(_values(words, f"{of}.dropout") or 0) for of in ("model", "adapter"))


#: A sign, the change of numerics that it stands for, and whether a command line is subject to it.
CAUSES: tuple[tuple[str, str, Callable[[Words, Chosen], bool]], ...] = (
    ("d", "dropout is drawn by sample", _drops),
    (
        "w",
        "weight decay leaves rates, gates and slopes alone",
        lambda words, chosen: (
            chosen["norm"] in ("dyt", "qdyt")
            or chosen["mixer"] in ("mamba", "mlstm", "slstm", "titan6", "titan_memory")
            or any(word in words for word in ("mixer.decay=true", "mixer.memory=true", TITAN))
            or "mamba" in _values(words, "mixer.cycle")
        ),
    ),
    (
        "l",
        "a step's loss is the mean over its predictions",
        lambda words, _: int(_values(words, "trainer.accumulate_grad_batches") or 1) > 1,
    ),
    (
        "b",
        "balance losses are one quotient of sums",
        lambda words, chosen: chosen["ffn"] == "moe" or chosen["mixer"] == "routed",
    ),
    (
        "h",
        "half precision: states, sums, norms, gates, grids in float32",
        lambda words, _: "precision=" in words,
    ),
    (
        "q",
        "the halves of SwiGLU are on the activation grid in the presets of QDYT",
        lambda words, _: QDYT in words,
    ),
)


def of(base: dict[str, Any], now: dict[str, Any]) -> tuple[list[str], int]:
    """Lines of the table, with the causes below; and in how many runs something is unexplained."""
    lines = [
        "| run | first step that differs | largest difference of a loss | `val/loss` before | now |"
        " causes |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    failed, notes = 0, []
    for name in (name for name in KNOWN if name in now):
        old, new = base[name], now[name]
        words = " ".join(KNOWN[name].line)
        causes = [sign for sign, _, fits in CAUSES if fits(words, choices(KNOWN[name].line))]
        first, largest = _difference(old.get("steps") or {}, new.get("steps") or {})
        validation = [_validation(one) for one in (old, new)]
        same = first is None and validation[0] == validation[1]
        codes = [code for code in new["codes"] if code not in (0, -9, 130)]
        if codes or (not same and not causes):
            failed += 1
            notes.append(f"{name}: ends with {codes}" if codes else f"{name}: no cause is known")
        share = "equal to the bit" if same else f"{largest:.1e}"
        shown = (f"{value:.6f}" if value is not None else "" for value in validation)
        why = ", ".join(causes) if not same else ""
        lines.append(f"| `{name}` | {first or ''} | {share} | {' | '.join(shown)} | {why} |")
    lines += ["", *(f"- {sign}: {text}" for sign, text, _ in CAUSES), *(f"- {n}" for n in notes)]
    return lines, failed


def _difference(old: dict[str, list[str]], new: dict[str, list[str]]) -> tuple[int | None, float]:
    """First step with another loss or gradient norm, and the largest relative difference."""
    first, largest = None, 0.0
    for column in ("loss", "grad_norm"):
        for step, (a, b) in enumerate(
            zip(old.get(column, ()), new.get(column, ()), strict=False), 1
        ):
            if a != b:
                first = step if first is None else min(first, step)
                if column == "loss":
                    x, y = float(a), float(b)
                    largest = max(largest, abs(x - y) / max(abs(x), 1e-30) if x == x else math.inf)
    return first, largest


def _validation(found: dict[str, Any]) -> float | None:
    value = (found.get("metrics") or {}).get("val/loss")
    return None if value is None else float(value)
