"""What each part of TITAN gives, and TITAN beside others, from the committed reports.

The paper plans these rows and prints no result, so nothing holds or fails: a part lowers perplexity
here if the whole 95 % interval of (with the part ÷ without it) is below one, raises it if the whole
interval is above, and is open otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmarks.claims import FAILS, HOLDS, Claim, Finding, finding
from benchmarks.equal_page import Equality, at_equal
from benchmarks.markdown import grid
from benchmarks.results_page import Report, report
from chimera.paths import EXPERIMENTS
from chimera.report import digits

TABLE, WHOLE = "titan/ablations", "full"
#: Table of other encoders, and the whole model's name there.
OTHERS, TITAN = "titan/baselines", "titan_bert_ultra"
#: The encoder of that table that has TITAN's kind of positions and none of its parts.
PLAIN = "transformer_rope"
#: Table of other mixers in TITAN's layers, and the row of its own.
PATTERN, STABLE = "titan/pattern", "stable"
#: Rows of the table that lack one part, with the part and what they have in its place.
PARTS = {
    "dense_ffn": ("four experts (two active)", "one"),
    "single_mixer": ("six mixers of four kinds", "attention in every layer"),
    "non_recursive": ("two passes through the layers", "one"),
    "fp16": ("ternary weights", "full precision"),
}
VERDICTS = {HOLDS: "lowers it", FAILS: "**raises it**"}
#: Ratio of two rows' FLOPs up to which equal steps are about equal FLOPs.
NEAR = 1.1
#: Equalities of which the tables have a column each, where they were run.
BUDGETS: tuple[Equality, ...] = ("FLOPs", "seconds")
#: What stands beside the ratio of TITAN's perplexity to another.
BESIDE = {HOLDS: "TITAN's is lower", FAILS: "**TITAN's is higher**"}


def titan() -> str:
    """docs/results.md: the table of parts."""
    return page(EXPERIMENTS)


def titan_parts() -> str:
    """README: the parts in one sentence."""
    return sentence(EXPERIMENTS)


def titan_baselines() -> str:
    """docs/results.md: TITAN beside other encoders."""
    return beside(EXPERIMENTS, OTHERS, TITAN) or "No report yet.\n"


def titan_pattern() -> str:
    """docs/results.md: TITAN's six mixers beside other ones in its layers."""
    return beside(EXPERIMENTS, PATTERN, STABLE) or "No report yet.\n"


def page(folder: Path) -> str:
    """The table of parts from the reports below a folder; empty without one."""
    found = report(TABLE, folder)
    if found is None:
        return ""
    rows = {row["row"]: row for row in found.done}
    whole = rows[WHOLE]
    findings = _findings(folder)
    more = budgets(found, WHOLE, findings)
    head = ["part", "perplexity without it", "with it, 95 % interval", "", "FLOPs with it", *more]
    lines = [head, ["---"] * len(head)]
    for name, one in findings.items():
        part, instead = PARTS[name]
        times = float(whole["flops"]) / float(rows[name]["flops"])
        lines.append([
            f"{part}, instead of {instead}",
            f"`{name}` {_value(found, name)}",
            one.ratio.shown,
            VERDICTS.get(one.verdict, "open"),
            f"{times:.1f} ×",
            *(ratios[name] for ratios in more.values()),
        ])  # fmt: skip
    unigram = next(float(row["mean"]) for row in found.rows if row["row"] == "unigram")
    table = grid(lines)
    return (
        f"The whole model ends with a validation perplexity of {_value(found, WHOLE)}"
        f" ({len(found.values(whole))} seeds), a unigram model with {unigram:.1f}"
        f" ([{found.scale}]({found.link})).\n\n{table}"
    )


def beside(folder: Path, table: str, whole: str) -> str:
    """A line for each row beside TITAN's in a report below a folder; empty without one.

    Args:
        folder: with the reports.
        table: that the report is of.
        whole: name of TITAN's row in it.
    """
    found = report(table, folder)
    if found is None:
        return ""
    flops = {row["row"]: float(row["flops"]) for row in found.done}
    more = budgets(found, whole, flops)
    head = ["row", "perplexity", "TITAN's ÷ its, 95 % interval", "", "TITAN's FLOPs ÷ its", *more]
    lines = [head, ["---"] * len(head)]
    for row in found.done:
        name = row["row"]
        if (one := finding(Claim(row["title"], table, whole, name), folder)) and name != whole:
            lines.append([
                f"{row['title']} (`{name}`)", _value(found, name), one.ratio.shown,
                BESIDE.get(one.verdict, "open"), f"{flops[whole] / flops[name]:.1f} ×",
                *(ratios[name] for ratios in more.values()),
            ])  # fmt: skip
    return (
        f"TITAN ends with a validation perplexity of {_value(found, whole)}"
        f" ([{found.scale}]({found.link})).\n\n{grid(lines)}"
    )


def budgets(found: Report, whole: str, names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Columns of the ratios at equal FLOPs and seconds, by row; those that the report has.

    Args:
        found: the report.
        whole: the row that is divided by each of the others.
        names: of the others.
    """
    columns = {}
    for equality in BUDGETS:
        ratios = {
            name: at_equal(found.folder, equality, whole, name) for name in names if name != whole
        }
        if any(ratios.values()):
            shown = {name: one.shown if one else "–" for name, one in ratios.items()}
            columns[f"at equal {equality}"] = shown
    return columns


def sentence(folder: Path) -> str:
    """The parts by what they do; empty without a report."""
    found, findings = report(TABLE, folder), _findings(folder)
    if found is None or not findings:
        return ""
    seeds = min(one.ratio.seeds for one in findings.values())
    rate = "own rates" if {WHOLE, *findings} <= found.own_rates else "one learning rate"
    flops = {row["row"]: float(row["flops"]) for row in found.done}
    parts = [
        f"{PARTS[name][0]} in place of {PARTS[name][1]} {one.ratio.shown}"
        + _at_equal(found, name, flops[WHOLE] / flops[name])
        for name, one in sorted(findings.items(), key=lambda item: -item[1].ratio.value)
    ]
    return (
        "TITAN's paper plans to measure its parts and does not. Here, perplexity of its whole model"
        f" divided by that without the part ([{found.scale}, {seeds} seeds, {rate}]"
        f"(docs/results.md#what-titans-parts-give)): {'; '.join(parts)}.{_plain(folder)}\n"
    )


def _at_equal(found: Report, name: str, times: float) -> str:
    """README: a part at equal FLOPs, if it costs or saves some."""
    equal = at_equal(found.folder, "FLOPs", WHOLE, name)
    return f" (at equal FLOPs {equal.shown})" if equal and not 1 / NEAR < times < NEAR else ""


def _plain(folder: Path) -> str:
    """README: the whole model beside a Transformer that shares its kind of positions."""
    one = finding(Claim("a plain Transformer", OTHERS, TITAN, PLAIN), folder)
    if one is None:
        return ""
    flops = {row["row"]: float(row["flops"]) for row in one.found.done}
    equal = [
        f", {ratio.shown} at equal {equality}"
        for equality in BUDGETS
        if (ratio := at_equal(one.found.folder, equality, TITAN, PLAIN))
    ]
    return (
        f" The whole model's ÷ that of a Transformer with rotated positions: {one.ratio.shown}, for"
        f" {flops[TITAN] / flops[PLAIN]:.1f} times the FLOPs{''.join(equal)}"
        " ([report](docs/results.md#beside-other-encoders))."
    )


def _findings(folder: Path) -> dict[str, Finding]:
    """The whole model against each row that there is."""
    found = {
        name: finding(Claim(part, TABLE, WHOLE, name), folder) for name, (part, _) in PARTS.items()
    }
    return {name: one for name, one in found.items() if one is not None}


def _value(found: Report, name: str) -> str:
    row = next(row for row in found.done if row["row"] == name)
    return digits.values(found.values(row).values())
