"""Count a model's parameters by part, on the meta device, and compare them with a paper's numbers.

    python -m chimera.tables.parameters preset=titan_bert_ultra [out=<file>.md]

TITAN eq. 53 at d = 1024, V = 50000, with the parts of its Table 6 (SPEC E3):
    12·(4d² mixer + 16d² experts + 4d gating + 3d norm) + V·d = 302.9 M ≈ 303 M
The published numbers come from `experiments/titan/parameters.csv`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from hydra.utils import instantiate
from torch import nn

from chimera.config.arguments import read
from chimera.config.compose import compose, plain
from chimera.config.tables import load
from chimera.errors import UserError
from chimera.model.assemble import build_model, choose
from chimera.model.backbone import Block
from chimera.model.language import LanguageModel
from chimera.report.formatting import show_grid
from chimera.report.markdown import grid
from chimera.safe_io import write_atomic
from chimera.tables import run

#: Vocabulary sizes of pretrained tokenizers; other tokenizers have a setting `vocab_size`.
VOCABULARY = {"bert": 30522, "gpt2": 50257}
#: Parts of a layer, in the order of TITAN Table 6.
PARTS = ("mixer", "experts", "gating", "norm")
TABLE = "titan/parameters"
USAGE = "python -m chimera.tables.parameters preset=<name> [key=value ...] [out=<file>]"


@dataclass(frozen=True)
class Options:
    """Options of the command line.

    Args:
        out: Markdown file for the tables; None: only print them.
    """

    out: Path | None = None


@dataclass(frozen=True)
class Count:
    """Parameter counts of a model.

    Args:
        dim: model width d.
        layers: for each layer the name of its mixer, and counts by part.
        outside: counts of the parts outside layers.
    """

    dim: int
    layers: list[tuple[str, dict[str, int]]]
    outside: dict[str, int]

    @property
    def parts(self) -> dict[str, int]:
        """Counts by part, summed over all layers."""
        return {part: sum(layer[part] for _, layer in self.layers) for part in PARTS}

    @property
    def total(self) -> int:
        return sum(self.parts.values()) + sum(self.outside.values())


def count(overrides: list[str]) -> Count:
    """Count the parameters of the model that these overrides choose.

    Raises:
        UserError: the overrides do not compose, or the size of the vocabulary is known only from
            the tokenizer's files.
    """
    config = plain(compose(overrides))
    settings = instantiate(config["model"], _convert_="all")
    tokenizer = config["choices"]["tokenizer"]
    vocabulary = config["tokenizer"].get("vocab_size") or VOCABULARY.get(tokenizer)
    if vocabulary is None:
        known = ", ".join(("sentencepiece", *VOCABULARY))
        raise UserError(f"tokenizer={tokenizer} has no setting vocab_size; choose one of {known}")
    with torch.device("meta"):
        model = build_model(settings, choose(config), vocab_size=vocabulary, causal=False)
    layers = [_layer(block) for block in model.backbone.blocks if isinstance(block, Block)]
    return Count(settings.dim, layers, _outside(model))


def _layer(block: Block) -> tuple[str, dict[str, int]]:
    gating = _size(getattr(block.ffn, "router", None))
    norms = (block.mixer_norm, block.ffn_norm, block.mixer_out_norm, block.ffn_out_norm)
    sizes = {
        "mixer": _size(block.mixer),
        "experts": _size(block.ffn) - gating,
        "gating": gating,
        "norm": _size(*norms),
    }
    return block.mixer.component, sizes


def _outside(model: LanguageModel) -> dict[str, int]:
    """Parameter counts outside layers; an embedding that is also the head counts once."""
    body = model.backbone
    parts = {
        "embeddings": _size(body.embedding),
        "embedding scale": _size(body.scale),
        "positions": _size(body.position),
    }
    if body.embedding_norm is not None:
        parts["embedding norm"] = _size(body.embedding_norm)
    return parts | {"last norm": _size(body.norm), "head": _size(model) - _size(body)}


def _size(*modules: nn.Module | None) -> int:
    return sum(p.numel() for module in modules if module is not None for p in module.parameters())


def layers_table(counted: Count) -> list[list[str]]:
    """Head and rows: per mixer, the number of layers and the parameters of a layer in d²."""
    layers = Counter(mixer for mixer, _ in counted.layers)
    first = dict(reversed(counted.layers))
    square = counted.dim**2
    rows = [["mixer", "layers", *(f"{part} /d²" for part in PARTS), "parameters of a layer"]]
    for mixer, number in layers.items():
        sizes = first[mixer]
        shares = [f"{sizes[part] / square:.3f}" for part in PARTS]
        rows.append([mixer, str(number), *shares, f"{sum(sizes.values()):,}"])
    return rows


def parts_table(counted: Count, published: dict[str, float]) -> list[list[str]]:
    """Head and rows: per part, our count, the formula's, and the difference to it.

    Args:
        counted: counts of the model.
        published: the paper's parameters per layer, by part.
    """
    layers = len(counted.layers)
    paper = {part: round(published[part] * layers) for part in PARTS if part in published}
    if paper:
        paper["embeddings"] = counted.outside["embeddings"]
    total = sum(paper.values())
    rows = [["part", "ours", "formula", "difference", "difference / total"]]
    for part, ours in (counted.parts | counted.outside).items():
        rows.append([part, f"{ours:,}", *_difference(ours, paper.get(part, 0), total)])
    return [*rows, ["total", f"{counted.total:,}", *_difference(counted.total, total, total)]]


def _difference(ours: int, formula: int, total: int) -> list[str]:
    if not total:
        return ["", "", ""]
    return [f"{formula:,}", f"{ours - formula:+,}", f"{(ours - formula) / total:+.2%}"]


def published(overrides: Sequence[str]) -> tuple[dict[str, float], list[str]]:
    """The paper's parameters per layer of a preset by part, and notes; empty if it has none."""
    of_preset = [p for p in load(TABLE).published if f"preset={p.row}" in overrides]
    numbers = {p.column: p.value for p in of_preset}
    return numbers, [f"{p.column}: {p.note}" for p in of_preset if p.note]


def main(arguments: Sequence[str]) -> None:
    """Print the tables, or write them to `out=`."""
    overrides: list[str] = []
    out = read(Options, arguments, USAGE, unread=overrides).out
    if any("=" not in text for text in overrides):
        wrong = next(text for text in overrides if "=" not in text)
        raise UserError(f"{wrong} is not key=value; write {USAGE}")
    counted = count(overrides)
    numbers, notes = published(overrides)
    tables = [layers_table(counted), parts_table(counted, numbers)]
    if out is None:
        for head, *rows in tables:
            show_grid(None, head, (), rows)
        print("\n".join(notes))
        return
    command = f"python -m chimera.tables.parameters {' '.join(arguments)}"
    parts = [
        f"# Parameters of {' '.join(overrides)}",
        f"`{command}`, d = {counted.dim}.",
        *(grid(head, rows) for head, *rows in tables),
        "\n".join(f"- {note}" for note in notes),
    ]
    write_atomic(out, "\n\n".join(filter(None, parts)) + "\n")


if __name__ == "__main__":
    run(main)
