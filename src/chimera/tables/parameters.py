"""Parameters of a model by part, counted on the meta device, beside a paper's numbers.

    python -m chimera.tables.parameters preset=titan_bert_ultra [out=<file>.md]

TITAN eq. 53 at d = 1024, V = 50000, which Table 6 makes up part by part (SPEC E3):
    12·(4d² mixer + 16d² experts + 4d gating + 3d norm) + V·d = 302.9 M ≈ 303 M
The published numbers are those of `experiments/titan/parameters.csv`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
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
from chimera.rundir.atomic import write_atomic
from chimera.tables.command import run, show

#: Vocabulary of pretrained tokenizers; that of others is in their settings.
VOCABULARY = {"bert": 30522, "gpt2": 50257}
#: Parts of a layer, in the order of TITAN Table 6.
PARTS = ("mixer", "experts", "gating", "norm")
TABLE = "titan/parameters"
USAGE = "python -m chimera.tables.parameters preset=<name> [key=value ...] [out=<file>]"


@dataclass(frozen=True)
class Options:
    """Where the tables are written.

    Args:
        out: Markdown file; they are only printed if this is left out.
    """

    out: Path | None = None


@dataclass(frozen=True)
class Count:
    """A model's parameters: of each layer (kind of mixer, and part), and outside of layers."""

    dim: int
    layers: list[tuple[str, dict[str, int]]]
    outside: dict[str, int]

    @property
    def parts(self) -> dict[str, int]:
        """Over all layers."""
        return {part: sum(layer[part] for _, layer in self.layers) for part in PARTS}

    @property
    def total(self) -> int:
        return sum(self.parts.values()) + sum(self.outside.values())


def count(overrides: list[str]) -> Count:
    """Count the model of these overrides.

    Raises:
        UserError: they do not compose, or the tokenizer has to be there to know its vocabulary.
    """
    config = plain(compose(overrides))
    settings = instantiate(config["model"], _convert_="all")
    tokenizer = config["choices"]["tokenizer"]
    vocabulary = config["tokenizer"].get("vocab_size") or VOCABULARY.get(tokenizer)
    if vocabulary is None:
        known = ", ".join(("sentencepiece", *VOCABULARY))
        raise UserError(f"tokenizer={tokenizer} has no vocab_size to count with; use {known}")
    with torch.device("meta"):
        model = build_model(settings, choose(config), vocab_size=vocabulary, causal=False)
    layers = [_layer(block) for block in model.backbone.blocks if isinstance(block, Block)]
    return Count(settings.dim, layers, _outside(model))


def _layer(block: Block) -> tuple[str, dict[str, int]]:
    router = getattr(block.ffn, "router", None)
    gating = _size([router] if router is not None else [])
    norms = [block.mixer_norm] + ([block.ffn_norm] if block.ffn_norm is not None else [])
    sizes = {
        "mixer": _size([block.mixer]),
        "experts": _size([block.ffn] if block.ffn is not None else []) - gating,
        "gating": gating,
        "norm": _size(norms),
    }
    return block.mixer.component, sizes


def _outside(model: LanguageModel) -> dict[str, int]:
    """Parameters outside of layers; an embedding that the head shares is counted once."""
    body = model.backbone
    embedding = _size([body.embedding])
    scale = _size([body.scale] if body.scale is not None else [])
    parts = {"embeddings": embedding, "their scale": scale, "positions": _size([body.position])}
    everything = sum(p.numel() for p in model.parameters())
    rest = everything - _size([body])
    return parts | {"last norm": _size([body.norm]), "head": rest}


def _size(modules: Iterable[nn.Module]) -> int:
    return sum(p.numel() for module in modules for p in module.parameters())


def layers_table(of: Count) -> list[list[str]]:
    """A row per kind of layer, in d²."""
    kinds = Counter(kind for kind, _ in of.layers)
    first = dict(reversed(of.layers))
    square = of.dim**2
    rows = [["layer", "how many", *(f"{part} /d²" for part in PARTS), "in all"]]
    for kind, many in kinds.items():
        layer = first[kind]
        sizes = [f"{layer[part] / square:.3f}" for part in PARTS]
        rows.append([kind, str(many), *sizes, f"{sum(layer.values()):,}"])
    return rows


def parts_table(of: Count, published: dict[str, float]) -> list[list[str]]:
    """A row per part of the model: ours, the formula's, the difference as a share of its total."""
    layers = len(of.layers)
    paper = {part: round(published[part] * layers) for part in PARTS if part in published}
    if paper:
        paper["embeddings"] = of.outside["embeddings"]
    whole = sum(paper.values())
    rows = [["part", "ours", "formula", "difference", "of the total"]]
    for part, ours in (of.parts | of.outside).items():
        theirs = paper.get(part, 0)
        rows.append([part, f"{ours:,}", *_against(ours, theirs, whole)])
    return [*rows, ["total", f"{of.total:,}", *_against(of.total, whole, whole)]]


def _against(ours: int, theirs: int, whole: int) -> list[str]:
    if not whole:
        return ["", "", ""]
    return [f"{theirs:,}", f"{ours - theirs:+,}", f"{(ours - theirs) / whole:+.2%}"]


def published(overrides: Sequence[str]) -> tuple[dict[str, float], list[str]]:
    """The paper's numbers per layer of a preset, and its notes; both empty where it has none."""
    mine = [p for p in load(TABLE).published if f"preset={p.row}" in overrides]
    numbers = {p.column: p.value for p in mine}
    return numbers, [f"{p.column}: {p.note}" for p in mine if p.note]


def main(arguments: Sequence[str]) -> None:
    """Print the tables, or write them to `out=`."""
    overrides: list[str] = []
    out = read(Options, arguments, USAGE, unread=overrides).out
    if any("=" not in text for text in overrides):
        raise UserError(f"write {USAGE}")
    counted = count(overrides)
    numbers, notes = published(overrides)
    tables = [layers_table(counted), parts_table(counted, numbers)]
    if out is None:
        for head, *rows in tables:
            show(head, rows)
        print("\n".join(notes))
        return
    command = f"python -m chimera.tables.parameters {' '.join(arguments)}"
    text = [f"# Parameters of {' '.join(overrides)}", "", f"`{command}`, d = {counted.dim}.", ""]
    for head, *rows in tables:
        text += [_line(head), _line(["---"] + ["---:"] * (len(head) - 1)), *map(_line, rows), ""]
    text += [f"- {note}" for note in notes]
    write_atomic(out, "\n".join(text).rstrip() + "\n")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    run(main)
