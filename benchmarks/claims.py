"""What the papers claim of single parts, against the committed reports.

A claim is that one row of a table has a lower perplexity than another. It holds here if the whole
95 % interval of their ratio over seeds (Student's, paired, of the logarithm) is below one, fails if
the whole interval is above one, and is open otherwise; nobody writes a verdict by hand.
`python -m benchmarks.figures` puts three of each verdict into README and all into docs/results.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.markdown import grid
from benchmarks.paired_ratio import Ratio, ratio
from benchmarks.results_page import Report, report
from chimera.paths import EXPERIMENTS


@dataclass(frozen=True)
class Claim:
    """That `row` has a lower perplexity than `than`.

    Args:
        words: the claim, in one line.
        table: path of a table whose metric is a perplexity, or a loss in nats.
        row, than: its rows.
        prints: of rows of ours that stand for one of the paper's, the row with its number.
    """

    words: str
    table: str
    row: str
    than: str
    prints: dict[str, str] = field(default_factory=dict)


#: Sinusoids of amplitude one drown embeddings of standard deviation 0.02, and any rule would beat
#: them; times √d, as in the paper that proposed sinusoids, the embeddings are heard.
SCALED = {"sinusoidal_scaled": "sinusoidal"}
#: The strongest claim of each paper first.
CLAIMS = (
    Claim("QDyT in place of LayerNorm", "bitnet_qdyt/norms", "qdyt", "layernorm"),
    Claim("QDyT in place of a static tanh", "bitnet_qdyt/norms", "qdyt", "static_tanh"),
    Claim(
        "the memory of the delta rule beside LoRA", "tptt/variants", "derivative_n2", "lora_only"
    ),
    Claim("a convolution before attention", "saidl/hybrids", "conv_before_attn", "baseline"),
    Claim(
        "rotary positions in place of sinusoidal ones, embeddings × √d",
        "saidl/positions",
        "rope",
        "sinusoidal_scaled",
        SCALED,
    ),
    Claim("a static tanh in place of LayerNorm", "bitnet_qdyt/norms", "static_tanh", "layernorm"),
    Claim(
        "sinusoidal positions, embeddings × √d, in place of ALiBi",
        "saidl/positions",
        "sinusoidal_scaled",
        "alibi",
        SCALED,
    ),
    Claim("full attention in place of linear", "saidl/attention", "standard", "linear"),
    Claim(
        "a sliding window in place of linear attention",
        "saidl/attention",
        "sliding_window",
        "linear",
    ),
    Claim(
        "sparse blocks in place of linear attention", "saidl/attention", "sparse_block", "linear"
    ),
    Claim(
        "rotary positions in place of sinusoidal ones, embeddings as they are",
        "saidl/positions",
        "rope",
        "sinusoidal",
    ),
    Claim(
        "sinusoidal positions, embeddings as they are, in place of ALiBi",
        "saidl/positions",
        "sinusoidal",
        "alibi",
    ),
    Claim("a convolution in every other layer", "saidl/hybrids", "interleaved", "baseline"),
    Claim(
        "a convolution in every other layer, with sparse blocks and ALiBi",
        "saidl/hybrids",
        "best_combo",
        "baseline",
    ),
    Claim("rotary positions in place of learned ones", "saidl/positions", "rope", "learned"),
    Claim("rotary positions in place of ALiBi", "saidl/positions", "rope", "alibi"),
    Claim(
        "sparse blocks in place of full attention", "saidl/attention", "sparse_block", "standard"
    ),
    Claim("the Hadamard rotation before every projection", "bitnet_qdyt/hadamard", "all", "none"),
    Claim("SwiGLU in place of ReLU²", "bitnet_qdyt/ffn", "swiglu", "relu2"),
    Claim(
        "the LSQ-style gradient rule in place of the plain one",
        "bitnet_qdyt/ste",
        "lsq",
        "standard",
    ),
    Claim(
        "BitNet-QDyT-Large in place of BERT-Base",
        "bitnet_qdyt/main",
        "bitnet_qdyt_large",
        "bert_base",
    ),
    Claim(
        "BitNet-QDyT-Base in place of TernaryBERT",
        "bitnet_qdyt/main",
        "bitnet_qdyt_base",
        "ternary_bert",
    ),
    Claim("BitNet-QDyT-Base in place of Q-BERT", "bitnet_qdyt/main", "bitnet_qdyt_base", "q_bert"),
    Claim(
        "BitNet-QDyT-Large in place of Base",
        "bitnet_qdyt/main",
        "bitnet_qdyt_large",
        "bitnet_qdyt_base",
    ),
)
#: Claims of each verdict in README.
SHOWN = 3
HOLDS, FAILS, OPEN = "holds", "does not hold", "open"


@dataclass(frozen=True)
class Finding:
    """A claim beside the runs.

    Args:
        claim: what is claimed.
        found: the report that it is read from.
        published: ratio of the paper's perplexities; None where it prints no such number.
        ratio: ours.
    """

    claim: Claim
    found: Report
    published: float | None
    ratio: Ratio

    @property
    def verdict(self) -> str:
        """What the interval says."""
        low, high = self.ratio.interval
        return HOLDS if high < 1 else FAILS if low > 1 else OPEN


def finding(claim: Claim, folder: Path = EXPERIMENTS) -> Finding | None:
    """A claim beside the table's report; None without a report, a row or a second seed."""
    found = report(claim.table, folder)
    if found is None:
        return None
    rows = {row["row"]: row for row in found.done}
    if claim.row not in rows or claim.than not in rows:
        return None
    log = _nats(found.table.metric)
    first, second = rows[claim.row], rows[claim.than]
    here = ratio(found.values(first), found.values(second), log)
    if here is None:
        return None
    printed = [rows.get(claim.prints.get(name, name)) for name in (claim.row, claim.than)]
    pair = [log(float(row["published"])) for row in printed if row and row["published"]]
    published = math.exp(pair[0] - pair[1]) if len(pair) == 2 else None
    return Finding(claim, found, published, here)


def _nats(metric: str) -> Callable[[float], float]:
    """How values of a metric become nats."""
    return math.log if metric.endswith("perplexity") else float


def findings() -> list[Finding]:
    """All claims that a report can answer, in their order."""
    return [found for claim in CLAIMS if (found := finding(claim)) is not None]


def claims() -> str:
    """README: the first of those that hold and of those that do not, with the paper's figure."""
    answered = [one for one in findings() if one.published is not None]
    chosen = [
        [one for one in answered if one.verdict == verdict][:SHOWN] for verdict in (HOLDS, FAILS)
    ]
    return _table([one for part in chosen for one in part], "")


def all_claims() -> str:
    """docs/results.md: every claim."""
    answered = findings()
    order = (HOLDS, FAILS, OPEN)
    return _table(sorted(answered, key=lambda one: order.index(one.verdict)), "../")


def _table(shown: list[Finding], up: str) -> str:
    head = [
        "a paper says that it lowers perplexity",
        "its figure",
        "here, 95 % interval",
        "",
        "runs",
    ]
    lines = [head, ["---"] * len(head)]
    for one in shown:
        own = {one.claim.row, one.claim.than} <= one.found.own_rates
        runs = f"{one.found.scale}, {one.ratio.seeds} seeds" + ", own rates" * own
        lines.append([
            f"{one.claim.words} ({one.found.table.source})",
            f"{one.published:.2f} ×" if one.published else "–",
            one.ratio.shown,
            f"**{one.verdict}**",
            f"[{runs}]({up}{one.found.link.removeprefix('../')})",
        ])  # fmt: skip
    return grid(lines)
