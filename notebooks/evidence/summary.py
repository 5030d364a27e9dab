"""What the runs say, in ten sentences: each with its interval and its limits, from the records."""

from __future__ import annotations

from pathlib import Path

from bootstrap import iqm, iqm_difference
from budgets import TABLES, budgets
from evidence import PARTS, Ratio, between, claims, report, runs
from small_tasks import profiles, scores

#: Tables by the name that a sentence gives their data.
_DATA = {
    "pydocs": "English documentation",
    "text": "Spanish novels",
    "mixture": "English and Spanish",
}


def sentences() -> list[str]:
    """The sentences, the most general first."""
    told = (_claims, _convolution_on_tasks, _convolution_on_text, _positions, _attention)
    return [tell() for tell in (*told, _norm, _glu, _titan, _parts, _memory)]


def numbered() -> str:
    """The sentences as a Markdown list."""
    return "".join(f"{number}. {text}\n" for number, text in enumerate(sentences(), 1))


def setting(path: str, row: str) -> str:
    """The size of the runs that a table's report has of a row, such as «4 layers of 128»."""
    of = report(path)
    assert of is not None
    found = runs(path, choices__scale=of.scale, row=row)
    found = found[found["seed"].isin(of.values(row))]
    usual = TABLES[path][0] if path in TABLES else found["trainer.max_steps"].mode()[0]
    run = found[found["trainer.max_steps"] == usual].iloc[0]
    size = f"{run['model.depth']:.0f} layers of {run['model.dim']:.0f}"
    steps = f"{run['trainer.max_steps']:,.0f} steps"
    data = _DATA[run["choices.data"]]
    return f"{size}, {steps} on {data}, {len(of.values(row))} seeds"


def _ratio(path: str, row: str, than: str) -> Ratio:
    of = report(path)
    assert of is not None
    found = of.ratio(row, than)
    assert found is not None
    return found


def _claims() -> str:
    found = claims()
    count = found["verdict"].value_counts()
    printed = found[found["paper"].notna()]
    inside = printed["size"].eq("as claimed").sum()
    return (
        f"**Of {len(found)} claims that a part lowers perplexity, {count['holds']} hold,"
        f" {count['does not hold']} do not, {count['open']} stay open**; the size that the paper"
        f" prints lies in our 95 % interval for {inside} of {len(printed)}. Each interval is for"
        " its line alone, and all models are small."
    )


def _convolution_on_tasks() -> str:
    by_mixer = scores(profiles())
    gain = iqm_difference(by_mixer["conv_attention"], by_mixer["attention"])
    delta = iqm_difference(by_mixer["delta+conv=4"], by_mixer["delta"])
    low = iqm(by_mixer["attention"]).value
    high = iqm(by_mixer["conv_attention"]).value
    return (
        f"**A short convolution before attention lifts its score on {len(by_mixer['delta'])} small"
        f" tasks from {low:.2f} to {high:.2f}**, by {between(*gain, '+.2f')}, and that of the delta"
        f" rule by {between(*delta, '+.2f')}: two layers of 64, 800 steps, four seeds; with more"
        " steps the gap narrows on some tasks."
    )


def _convolution_on_text() -> str:
    pair = "conv_before_attn", "baseline"
    at = budgets("saidl/hybrids")
    return (
        "**On text the same convolution brings perplexity to"
        f" {_ratio('saidl/hybrids', *pair)} its value without** at equal steps,"
        f" {at.ratio('FLOPs', *pair)} at equal FLOPs and {at.ratio('seconds', *pair)} at equal"
        f" seconds ({setting('saidl/hybrids', pair[0])})."
    )


def _positions() -> str:
    path = "saidl/positions"
    printed = claims().set_index("claim")["paper"]
    theirs = printed["rotary positions in place of ALiBi (SAIDL Table 5)"]
    return (
        f"**Rotary positions beat learned ones, {_ratio(path, 'rope', 'learned')}, and ALiBi"
        f" hardly, {_ratio(path, 'rope', 'alibi')}** where the paper prints {theirs:.2f}"
        f" ({setting(path, 'rope')})."
    )


def _attention() -> str:
    path, pair = "saidl/attention", ("standard", "linear")
    at = budgets(path)
    return (
        "**Full attention gains little over linear attention at this size:**"
        f" {_ratio(path, *pair)} at equal steps, {at.ratio('seconds', *pair)} at equal seconds"
        f" ({setting(path, pair[0])}, sequences of 128, where full attention costs little)."
    )


def _norm() -> str:
    path = "bitnet_qdyt/norms"
    return (
        "**In ternary encoders QDyT is level with LayerNorm,"
        f" {_ratio(path, 'qdyt', 'layernorm')}, and far ahead of a static tanh,"
        f" {_ratio(path, 'qdyt', 'static_tanh')}**; evaluated with the token mean the same weights"
        f" give {_ratio(path, 'qdyt_token_mean', 'layernorm')} of LayerNorm"
        f" ({setting(path, 'qdyt')})."
    )


def _glu() -> str:
    path = "bitnet_qdyt/ffn"
    return (
        f"**SwiGLU beats ReLU² of the same cost, {_ratio(path, 'swiglu', 'relu2')}**"
        f" ({setting(path, 'relu2')}; the two rows ran on different processors)."
    )


def _titan() -> str:
    path, pair = "titan/baselines", ("titan_first", "transformer_rope")
    of, at = report(path), budgets(path)
    assert of is not None
    times = of.rows["flops"][pair[0]] / of.rows["flops"][pair[1]]
    return (
        "**TITAN's whole model does not beat a Transformer with rotary positions:**"
        f" {_ratio(path, *pair)} for {times:.1f} times the FLOPs,"
        f" {at.ratio('FLOPs', *pair)} at equal FLOPs ({setting(path, pair[1])})."
    )


def _parts() -> str:
    found = {row: _ratio("titan/ablations", "full", row) for row in PARTS}
    told = [f"{PARTS[row][0]} {found[row]}" for row in sorted(found, key=lambda r: found[r].value)]
    return (
        "**Of TITAN's parts, perplexity with the part divided by that without it:**"
        f" {'; '.join(told)} ({setting('titan/ablations', 'full')})."
    )


def _memory() -> str:
    of = report("tptt/variants")
    assert of is not None
    found = _ratio("tptt/variants", "derivative_n2", "lora_only")
    best = of.rows.index[0]
    run = runs("tptt/variants", choices__scale=of.scale, row="derivative_n2").iloc[0]
    name = Path(run["model.name"]).name
    steps = run["trainer.max_steps"]
    return (
        f"**Beside LoRA, TPTT's memory raises perplexity: {found} that of LoRA alone**; the best of"
        f" {len(of.rows)} variants is `{best}` ({found.seeds} seeds, on one pretrained model,"
        f" {name}, and {steps:,.0f} steps)."
    )


if __name__ == "__main__":
    print(numbered())
