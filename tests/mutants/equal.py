"""Mutants that compute the same numbers, each with the reason why no test can tell them apart."""

from __future__ import annotations

from tests.mutants.mutate import Mutant

#: By file and line of text: the expression before, after ("" for any), and the reason.
EQUAL: dict[tuple[str, str], tuple[str, str, str]] = {
    ("mixer/liza.py", "BLOCK = 128"): ("128", "", "size of a block of queries; any is right"),
    ("quant/shared/packed.py", "BLOCK = 640  # rows unpacked at a time, a multiple of five"): (
        "640", "", "rows unpacked at a time; any number is right",
    ),
    ("mixer/shared/ssm.py", "self.sizes[1],"): ("1", "2", "sizes are (rank, state, state)"),
}  # fmt: skip


def reason(mutant: Mutant) -> str:
    """Why a mutant is equal, or ""."""
    before, after, why = EQUAL.get((mutant.file, mutant.text), ("", "", ""))
    return why if mutant.before == before and after in ("", mutant.after) else ""
