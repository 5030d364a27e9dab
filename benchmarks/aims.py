"""Compare the measured speed of mixers with aims that were set beforehand."""

from __future__ import annotations

from dataclasses import dataclass

Seconds = dict[str, dict[int, float]]
#: Number of tokens at which mixers are compared with rivals.
AT = 4096
#: Aims: mixer, wanted ratio of the rival's time to the mixer's, rival.
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
    ("gated_delta", 0.67, "delta"),
    ("gla", 0.67, "retnet"),
    ("mamba2", 3.0, "mamba"),
]
#: Mixers whose time is mostly their four projections d → d: also compared without them.
PROJECTED = {"retnet", "linear", "sparse_block", "sliding_window"}
PROJECTIONS = "projections alone"
#: Aim for LINEAR: the time per token grows by less than GROWTH from the first length to the second.
FLAT, GROWTH = (2048, 8192), 0.15
LINEAR = ["retnet", "linear", "sparse_block", "sliding_window", "mamba", "mlstm", "delta"]
LINEAR += ["gated_delta", "mamba2", "gla", "hgrn2", "kda", "rwkv7"]


@dataclass(frozen=True)
class Aim:
    """One aim, with the text of its row in the table.

    Args:
        what: the measured quantity.
        wanted, reached: its wanted and its measured value.
        met: whether the aim is met.
        mixing: the measured value after the time of the projections is subtracted from both sides.
    """

    what: str
    wanted: str
    reached: str
    met: bool
    mixing: str = "–"


def evaluate_aims(seconds: Seconds) -> list[Aim]:
    """Evaluate all aims of the measured mixers.

    Args:
        seconds: seconds by name and number of tokens.
    """
    aims = [_faster(seconds, *aim) for aim in FASTER if AT in seconds.get(aim[0], {})]
    return aims + [_flat(seconds, name) for name in LINEAR if name in seconds]


def _faster(seconds: Seconds, mixer: str, factor: float, rival: str) -> Aim:
    ratio = seconds[rival][AT] / seconds[mixer][AT]
    what = f"`{mixer}` against {rival}, {AT} tokens"
    met = ratio >= factor
    if mixer not in PROJECTED:
        return Aim(what, f"≥ {factor:g} ×", f"{ratio:.2f} ×", met)
    projections = seconds[PROJECTIONS][AT]
    mixing = (seconds[rival][AT] - projections) / (seconds[mixer][AT] - projections)
    return Aim(what, f"≥ {factor:g} ×", f"{ratio:.2f} ×", met, f"{mixing:.1f} ×")


def _flat(seconds: Seconds, name: str) -> Aim:
    short, long = FLAT
    growth = seconds[name][long] / long / (seconds[name][short] / short) - 1
    what = f"`{name}`, growth of time per token, {short} → {long}"
    return Aim(what, f"< {GROWTH:.0%}", f"{growth:+.1%}", growth < GROWTH)
