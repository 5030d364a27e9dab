"""Mutants that compute the same numbers, each with the reason why no test can tell them apart."""

from __future__ import annotations

from tests.mutants.mutate import Mutant

#: File, line of text, the expression before, after ("" for any), and the reason.
EQUAL = (
    ("mixer/liza.py", "BLOCK = 128", "128", "", "queries at a time; any number is right"),
    ("mixer/shared/ssm.py", "self.sizes[1],", "1", "2", "sizes are (rank, state, state)"),
    (
        "ops/attention.py",
        "if buffers is None or buffers.used != start or end > buffers.tensors[2].shape[1]:",
        "end > buffers.tensors[2].shape[1]", "", "buffers grow one token earlier",
    ),
    (
        "ops/attention.py",
        "if buffers is None or buffers.used != start or end > buffers.tensors[2].shape[1]:",
        "2", "3", "positions and masks have as many places",
    ),
    (
        "ops/attention.py", "return _Buffers(tuple(tensors), self.pos.shape[1])",
        "1", "", "the caller sets the number of taken places itself",
    ),
    (
        "mixer/routed.py", "y = y + routing.touch(p for m in idle for p in m.parameters())",
        "y + routing.touch((p for m in idle for p in m.parameters()))", "",
        "the term is zero, and so are its gradients",
    ),
    (
        "ops/delta.py", "return chunkwise(q, k, v, beta, decay, state, chunk=q.shape[2])",
        "2", "", "tokens of a chunk; any number is right",
    ),
    (
        "ops/cross_entropy.py", "if len(x) <= rows:", "len(x) <= rows", "len(x) < rows",
        "one part, computed through a checkpoint: the same numbers",
    ),
)  # fmt: skip


def reason(mutant: Mutant) -> str:
    """Why a mutant is equal, or ""."""
    for file, text, before, after, why in EQUAL:
        if (file, text, before) == (mutant.file, mutant.text, mutant.before):
            return why if after in ("", mutant.after) else ""
    return ""
