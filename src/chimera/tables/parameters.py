"""Where a model's parameters are, counted without memory, beside what a paper says.

    python -m chimera.tables.parameters preset=titan_bert_ultra [out=<file>.md]

TITAN eq. 53 at d = 1024, V = 50000, which Table 6 makes up part by part (SPEC E3):
    12·(4d² mixer + 16d² experts + 4d gating + 3d norm) + V·d = 302.9 M ≈ 303 M
The published numbers are those of `experiments/titan/parameters.csv`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from hydra.utils import instantiate
from rich.console import Console
from rich.table import Table
from torch import nn

from chimera.config.compose import compose, plain
from chimera.config.tables import load
from chimera.errors import UserError
from chimera.model.assemble import build_model, choose
from chimera.model.backbone import Block
from chimera.model.language import LanguageModel

#: Vocabulary of a tokenizer that is not learnt to a size of our choice.
VOCABULARY = {"bert": 30522, "gpt2": 50257}
#: Parts of a layer, in the order of TITAN Table 6.
PARTS = ("mixer", "experts", "gating", "norm")
TABLE = "titan/parameters"


@dataclass(frozen=True)
class Count:
    """A model's parameters: of each layer by part, and of what is not in a layer."""

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


def count(words: list[str]) -> Count:
    """Count the model that these words of a command line make, on the meta device."""
    config = plain(compose(words))
    settings = instantiate(config["model"], _convert_="all")
    vocabulary = config["tokenizer"].get("vocab_size") or VOCABULARY[config["choices"]["tokenizer"]]
    with torch.device("meta"):
        model = build_model(settings, choose(config), vocab_size=vocabulary, causal=False)
    layers = [_layer(block) for block in model.backbone.blocks if isinstance(block, Block)]
    return Count(settings.dim, layers, _outside(model))


def _layer(block: Block) -> tuple[str, dict[str, int]]:
    router = getattr(block.ffn, "router", None)
    gating = _size([router] if router is not None else [])
    norms = [block.mixer_norm] + ([block.ffn_norm] if block.ffn_norm is not None else [])
    found = {
        "mixer": _size([block.mixer]),
        "experts": _size([block.ffn] if block.ffn is not None else []) - gating,
        "gating": gating,
        "norm": _size(norms),
    }
    return block.mixer.component, found


def _outside(model: LanguageModel) -> dict[str, int]:
    """What is not in a layer, a table that the head shares counted once."""
    body = model.backbone
    embedding = _size([body.embedding])
    scale = _size([body.scale] if body.scale is not None else [])
    parts = {"embeddings": embedding, "their scale": scale, "positions": _size([body.position])}
    everything = sum(p.numel() for p in model.parameters())
    rest = everything - _size([body])
    return parts | {"last norm": _size([body.norm]), "head": rest}


def _size(modules: Iterable[nn.Module]) -> int:
    return sum(p.numel() for module in modules for p in module.parameters())


def layers_table(found: Count) -> list[list[str]]:
    """A row per kind of layer, in d²."""
    kinds = Counter(kind for kind, _ in found.layers)
    first = dict(reversed(found.layers))
    square = found.dim**2
    rows = [["layer", "how many", *(f"{part} /d²" for part in PARTS), "in all"]]
    for kind, many in kinds.items():
        layer = first[kind]
        sizes = [f"{layer[part] / square:.3f}" for part in PARTS]
        rows.append([kind, str(many), *sizes, f"{sum(layer.values()):,}"])
    return rows


def parts_table(found: Count, published: dict[str, float]) -> list[list[str]]:
    """A row per part of the model: ours, the formula's, the difference as a share of its total."""
    layers = len(found.layers)
    paper = {part: round(published[part] * layers) for part in PARTS if part in published}
    if paper:
        paper["embeddings"] = found.outside["embeddings"]
    whole = sum(paper.values())
    rows = [["part", "ours", "formula", "difference", "of the total"]]
    for part, ours in (found.parts | found.outside).items():
        theirs = paper.get(part, 0)
        rows.append([part, f"{ours:,}", *_against(ours, theirs, whole)])
    return [*rows, ["total", f"{found.total:,}", *_against(found.total, whole, whole)]]


def _against(ours: int, theirs: int, whole: int) -> list[str]:
    if not whole:
        return ["", "", ""]
    return [f"{theirs:,}", f"{ours - theirs:+,}", f"{(ours - theirs) / whole:+.2%}"]


def published(words: list[str]) -> tuple[dict[str, float], list[str]]:
    """The paper's numbers per layer for a preset that it has some for, and what to say of each."""
    mine = [p for p in load(TABLE).published if f"preset={p.row}" in words]
    numbers = {p.column: p.value for p in mine}
    return numbers, [f"{p.column}: {p.note}" for p in mine if p.note]


def main(argv: list[str]) -> int:
    """Print the tables, or write them to `out=`."""
    out = [word for word in argv if word.startswith("out=")]
    words = [word for word in argv if word not in out]
    if any("=" not in word for word in words):
        raise UserError("write python -m chimera.tables.parameters preset=<name> [key=value ...]")
    found = count(words)
    numbers, notes = published(words)
    tables = [layers_table(found), parts_table(found, numbers)]
    if not out:
        console = Console()
        for rows in tables:
            shown = Table(*rows[0])
            for row in rows[1:]:
                shown.add_row(*row)
            console.print(shown)
        console.print("\n".join(notes))
        return 0
    command = f"python -m chimera.tables.parameters {' '.join(argv)}"
    text = [f"# Parameters of {' '.join(words)}", "", f"`{command}`, d = {found.dim}.", ""]
    for rows in tables:
        text += [_line(rows[0]), _line(["---"] + ["---:"] * (len(rows[0]) - 1))]
        text += [*map(_line, rows[1:]), ""]
    text += [f"- {note}" for note in notes]
    Path(out[0].partition("=")[2]).write_text("\n".join(text).rstrip() + "\n", encoding="utf-8")
    return 0


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        sys.exit(print(f"error: {error}", file=sys.stderr) or 2)
