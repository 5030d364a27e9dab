"""Mistakes that the tests once let through, as text to find and text to put there."""

from __future__ import annotations

from pathlib import Path

from tests.mutants.mutate import Mutant

KNOWN = (
    # QDyT: γ calibrated at the α where the warm-up begins.
    ("callback/part/qdyt.py", "begin_calibration(self.end)", "begin_calibration(self.start)"),
    # SoRA: the deviation of the gates.
    ("adapter/sora.py", "nn.init.normal_(g)", "nn.init.normal_(g, std=0.9)"),
    # LoRA: Kaiming's bound.
    ("adapter/shared/low_rank.py", "a=math.sqrt(5)", "a=math.sqrt(4)"),
    # DeltaNet: the bias of the decay.
    ("mixer/delta.py", "math.log(1e-1)", "math.log(9e-2)"),
    ("mixer/delta.py", "dt.expm1().log()", "dt.log()"),
    # AFT: the deviation of both factors.
    ("mixer/aft.py", "self.a = nn.Parameter(0.01", "self.a = nn.Parameter(0.011"),
    ("mixer/aft.py", "self.b = nn.Parameter(0.01", "self.b = nn.Parameter(0.011"),
    # RetNet: ε of the norm over each head.
    ("mixer/retnet.py", "eps=self.eps", "eps=1e-5"),
    ("mixer/retnet.py", "eps: PositiveFloat = 1e-6", "eps: PositiveFloat = 1e-5"),
)


def known(root: Path) -> list[Mutant]:
    """Raises ValueError if a text does not stand exactly once in its file."""
    found = []
    for file, before, after in KNOWN:
        source = (root / "src/chimera" / file).read_text()
        if source.count(before) != 1:
            raise ValueError(f"tests/mutants/known.py: {file} must have «{before}» once")
        line = source[: source.index(before)].count("\n") + 1
        changed = source.replace(before, after)
        found.append(Mutant(file, line, "known", before, after, before, 0, changed))
    return found
