"""Numbers as a reader wants them: no digit that the spread makes meaningless."""

from __future__ import annotations

import math

from chimera.report.stats import Difference, Spread


def number(value: float, digits: int = 4) -> str:
    """So many significant digits, thousands apart, never an exponent for everyday sizes."""
    if value == 0.0:
        return "0"
    if not 1e-4 <= abs(value) < 1e9:
        return f"{value:.{digits - 1}e}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def spread(of: Spread, *, sign: bool = False) -> str:
    """`189.7 ± 2.3`: two significant digits of the spread say where the mean ends."""
    plus = "+" if sign and of.mean > 0 else ""
    if of.std is None or of.equal:
        return plus + number(of.mean) + ("" if of.std is None else " ± 0")
    decimals = min(8, max(0, 1 - math.floor(math.log10(of.std))))
    return f"{plus}{of.mean:,.{decimals}f} ± {of.std:,.{decimals}f}"


def p_value(of: Difference) -> str:
    """Two digits of p; empty for one seed."""
    if of.p is None:
        return ""
    return "<0.001" if of.p < 0.001 else f"{of.p:.2g}"


def count(value: float) -> str:
    """`12.8 M`."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:g}"


def clock(seconds: float) -> str:
    """`3:14`, with hours where there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
