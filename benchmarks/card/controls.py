"""Pairs of profiles with and without a short convolution: what it gives."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.card import longer
from benchmarks.card.records import Profile, Profiles
from benchmarks.variant import address
from chimera.report.bootstrap import Estimate, iqm, iqm_difference
from chimera.report.escape import Markdown
from chimera.report.stats import paired
from chimera.report.text import grid

#: Without a convolution before the mixer, and with one.
PAIRS = (("attention", "conv_attention"), ("delta", "delta+conv=4"))


def known(profiles: Profiles) -> list[tuple[Profile, Profile]]:
    """Pairs of which both have all tasks."""
    complete = {profile.mixer: profile for profile in profiles.complete()}
    return [(complete[a], complete[b]) for a, b in PAIRS if a in complete and b in complete]


def section(profiles: Profiles) -> list[str]:
    """Paragraphs of choose.md."""
    pairs = known(profiles)
    if not pairs:
        return []
    head = ["without", "with", *profiles.tasks, "IQM"]
    return [
        "## What a convolution gives",
        "Differences of the score by a causal convolution of three or four tokens for each channel"
        " before the mixer (`conv_attention`) or on its queries, keys and values (`delta`);"
        " in brackets Student's 95% interval over seeds, of IQM the bootstrap's. Many mixers have"
        " such a convolution within (`mamba`, `mamba2`, `gated_delta`, `kda`), others have none:"
        " a comparison of the two kinds measures the convolution, too. `conv_attention` has a norm"
        " and a branch of its own beside the convolution (`mixer.residual=false` has neither, and"
        " is not profiled yet), so that its difference is not the convolution's alone.",
        grid(head, [_row(a, b, profiles.tasks) for a, b in pairs]),
    ]


def _row(without: Profile, with_it: Profile, tasks: Sequence[str]) -> list[str]:
    cells = []
    for task in tasks:
        gap = paired(with_it.scores[task], without.scores[task])
        assert gap is not None
        ends = f" ({gap.interval[0]:+.2f} to {gap.interval[1]:+.2f})" if gap.interval else ""
        cells.append(f"{gap.mean:+.2f}{ends}")
    gain = iqm_difference(with_it.scores, without.scores)
    names = [Markdown(f"[`{one.mixer}`]({address(one.mixer)})") for one in (without, with_it)]
    return [*names, *cells, _signed(gain)]


def _signed(gain: Estimate) -> str:
    if gain.low is None or gain.high is None:
        return f"{gain.value:+.2f}"
    return f"{gain.value:+.2f} ({gain.low:+.2f} to {gain.high:+.2f})"


def sentence(profiles: Profiles, more: Sequence[longer.Longer] = ()) -> str:
    """README: the same in one sentence.

    Args:
        profiles: of the run store.
        more: scores after more steps.
    """
    told = []
    for without, with_it in known(profiles):
        low, high = iqm(without.scores).value, iqm(with_it.scores).value
        gain = iqm_difference(with_it.scores, without.scores)
        told.append(f"`{without.mixer}` from {low:.2f} to {high:.2f}, by {_signed(gain)}")
    return (
        f"On {len(profiles.tasks)} [small tasks](docs/choose.md#what-a-convolution-gives) a causal"
        f" convolution of a few tokens lifts the score of {', and '.join(told)} (interquartile"
        " means, 95% intervals). Who compares a mixer that has one with a mixer that has none"
        f" measures the convolution.{longer.sentence(more, profiles, [a for a, _ in PAIRS])}\n"
    )
