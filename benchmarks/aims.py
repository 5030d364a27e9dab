"""What issue 3 asks of the mixers' speed, and what was reached."""

from __future__ import annotations

from dataclasses import dataclass

Seconds = dict[str, dict[int, float]]
#: At this length: ours, how many times faster than whom.
AT = 4096
FASTER = [
    ("retnet", 15.0, "naive retention"),
    ("retnet", 2.0, "torch SDPA"),
    ("linear", 15.0, "naive linear"),
    ("linear", 2.0, "torch SDPA"),
    ("sparse_block", 20.0, "naive softmax"),
    ("sliding_window", 8.0, "naive softmax"),
    ("mamba", 3.0, "mambapy"),
    ("mlstm", 20.0, "xlstm parallel"),
    ("delta", 0.5, "retnet"),
]
#: Those whose four projections d → d are most of what is left: shown without them, too.
PROJECTED = {"retnet", "linear", "sparse_block", "sliding_window"}
PROJECTIONS = "projections alone"
#: Time per token at the second length, at most this much above that at the first.
FLAT, GROWTH = (2048, 8192), 0.15
LINEAR = ["retnet", "linear", "sparse_block", "sliding_window", "mamba", "mlstm", "delta"]


@dataclass(frozen=True)
class Aim:
    """One aim. `mixing` is what was reached with the projections' time taken off both sides."""

    what: str
    wanted: str
    reached: str
    met: bool
    mixing: str = "–"


def reached(seconds: Seconds) -> list[Aim]:
    """Every aim whose parties were measured."""
    aims = [_faster(seconds, *aim) for aim in FASTER if AT in seconds.get(aim[0], {})]
    return aims + [_flat(seconds, name) for name in LINEAR if name in seconds]


def _faster(seconds: Seconds, ours: str, factor: float, theirs: str) -> Aim:
    ratio = seconds[theirs][AT] / seconds[ours][AT]
    what = f"`{ours}` against {theirs}, {AT} tokens"
    met = ratio >= factor
    if ours not in PROJECTED:
        return Aim(what, f"≥ {factor:g} ×", f"{ratio:.2f} ×", met)
    both = seconds[PROJECTIONS][AT]
    mixing = (seconds[theirs][AT] - both) / (seconds[ours][AT] - both)
    return Aim(what, f"≥ {factor:g} ×", f"{ratio:.2f} ×", met, f"{mixing:.1f} ×")


def _flat(seconds: Seconds, name: str) -> Aim:
    short, long = FLAT
    growth = seconds[name][long] / long / (seconds[name][short] / short) - 1
    what = f"`{name}`, growth of time per token, {short} → {long}"
    return Aim(what, f"< {GROWTH:.0%}", f"{growth:+.1%}", growth < GROWTH)
