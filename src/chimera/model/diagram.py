"""Mermaid diagram of a composed model, as the papers' Figures 1 and 2 show theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from torch import nn

from chimera.contract import Position


def mermaid(model: nn.Module, names: Mapping[str, str]) -> str:
    """Flow chart from token ids to the output; equal neighbouring blocks are one box.

    Args:
        model: from `model.assemble`, with its head and adapter, on any device; another model is one
            box.
        names: choices by group, as `config.yaml` has them.
    """
    backbone: Any = getattr(model, "backbone", None)
    blocks = getattr(backbone, "blocks", None)
    lines = ["flowchart TB", '  ids(["token ids"])']
    if blocks is None:
        name = label(names.get("model", type(model).__name__), type(backbone or model).__name__)
        return "\n".join([*lines, f"  ids --> model[{name}]", *_adapter(names, "model"), ""])
    quant = names["quant"]
    table = quant if getattr(backbone.embedding, "component", "") == "quant" else ""
    width = backbone.width
    where = names["position"] if "embed" in backbone.position.provides else ""
    lines.append(f"  ids --> embedding[{label('embedding', f'd = {width}', table, _plus(where))}]")
    loops = f" × {backbone.loops} loops" if backbone.loops > 1 else ""
    kinds = [_kinds(block) for block in blocks]
    period = _period(kinds)
    times = f" = {len(kinds) // period} × {period}" if period < len(kinds) else ""
    lines.append(f'  subgraph stack["{len(blocks)} blocks{times}{loops}"]')
    for number, (kind, equal) in enumerate(groupby(kinds[:period])):
        lines += _block(number, kind, len(list(equal)), names)
    lines.append("  end")
    lines.append("  embedding --> b0")
    last = number
    lines += [f"  b{i} --> b{i + 1}" for i in range(last)]
    if backbone.loops > 1:
        lines.append(f'  b{last} -. "{backbone.loops} times" .-> b0')
    lines.append(f"  b{last} --> norm[{label(names['norm'])}]")
    lines.append(f"  norm --> head[{label(*_head(model))}]")
    return "\n".join([*lines, *_adapter(names, "stack"), ""])


class _Kind(NamedTuple):
    """Mixer and ffn of a block in words, and whether its mixer has a position."""

    mixer: str
    ffn: str
    placed: bool


def _kinds(block: Any) -> _Kind:
    placed = any(isinstance(m, Position) and m.provides for m in block.mixer.modules())
    return _Kind(_mixer(block.mixer), "" if block.ffn is None else _ffn(block.ffn), placed)


def _ffn(ffn: Any) -> str:
    experts = getattr(ffn, "experts", None)
    if experts is None:
        return type(ffn).__name__
    return f"{type(ffn).__name__}({len(experts)} × {type(experts[0]).__name__}, top {ffn.top_k})"


def _period(kinds: Sequence[_Kind]) -> int:
    """Length of the shortest beginning that, repeated, is the whole stack; 1 if all are equal."""
    lengths = (n for n in range(1, len(kinds)) if len(kinds) % n == 0)
    whole = list(kinds)
    return next((n for n in lengths if whole[:n] * (len(whole) // n) == whole), len(whole))


def _mixer(mixer: Any) -> str:
    ahead = getattr(mixer, "ahead", None)
    if ahead is not None:
        return f"{_mixer(ahead)}, both directions"
    members = getattr(mixer, "members", None)
    inner = getattr(mixer, "inner", None)
    if members is not None:
        return f"{type(mixer).__name__}({', '.join(_mixer(m) for m in members.values())})"
    return type(mixer).__name__ + (f"({_mixer(inner)})" if isinstance(inner, nn.Module) else "")


def _block(number: int, kind: _Kind, count: int, names: Mapping[str, str]) -> list[str]:
    """Lines of one box of equal blocks."""
    mixer, ffn, placed = kind
    norm = names["norm"]
    quant = names["quant"]
    of = "" if quant == "none" else f"linear: {quant}"
    where = f"position: {names['position']}" if placed else ""
    many = f"{count} × block" if count > 1 else "block"
    lines = [f'    subgraph b{number}["{many}"]', "      direction TB"]
    lines.append(f"      n{number}[{label(norm)}] --> m{number}[{label(mixer, of, where)}]")
    lines.append(f'      m{number} --> a{number}(("+"))')
    if ffn:
        lines.append(f"      a{number} --> f{number}[{label(norm)}]")
        lines.append(f"      f{number} --> g{number}[{label(ffn, of)}]")
        lines.append(f'      g{number} --> e{number}(("+"))')
    return [*lines, "    end"]


def _head(model: Any) -> list[str]:
    head = getattr(model, "head", None)
    if head is None:
        pool = getattr(model, "pool", "")
        return ["classification head", f"pooling: {pool}" if pool else ""]
    tied = "tied to the embedding" if head.table is not None else "own matrix"
    return ["vocabulary head", tied, "dense, GELU, norm" if head.transform is not None else ""]


def _adapter(names: Mapping[str, str], to: str) -> list[str]:
    name = names.get("adapter", "none")
    return [] if name == "none" else [f"  adapter[{label(f'adapter: {name}')}] -.-> {to}"]


def _plus(position: str) -> str:
    return f"+ position: {position}" if position else ""


def label(*parts: str) -> str:
    """A quoted label of several lines, in which no part is code of Mermaid."""
    kept = (part.replace('"', "'").replace("<", "‹").replace(">", "›") for part in parts if part)
    return f'"{"<br/>".join(kept)}"'
