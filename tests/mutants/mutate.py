"""Lines of arithmetic, and small mistakes in them: of sign, constant, axis, by one, a missing term.

A mutation replaces one expression. Types, messages, docstrings and decorators are left alone.
"""

from __future__ import annotations

import ast
import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("ops", "mixer", "norm", "quant", "ffn", "position", "adapter", "optim")

#: Methods and functions whose positional integer is an axis.
AXIS = frozenset(
    """sum mean std var amax amin max min argmax argmin cumsum cumprod cummax softmax log_softmax
    logsumexp logcumsumexp flip roll cat stack unbind split chunk unsqueeze squeeze flatten
    unflatten narrow select transpose movedim gather scatter index_select size norm topk sort
    diff all any prod repeat_interleave""".split()  # noqa: SIM905
)
SWAP: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One changed expression.

    Attributes:
        file: below src/chimera.
        line: where the expression begins, from 1.
        kind: sign, constant, axis, off by one or missing term.
        before, after: the expression.
        text: the line without its comment.
        column: where the expression begins.
        source: the whole file with the change.
    """

    file: str
    line: int
    kind: str
    before: str
    after: str
    text: str
    column: int
    source: str

    @property
    def key(self) -> str:
        """The same while other lines and comments change."""
        parts = (self.file, self.text, self.kind, str(self.column), self.before, self.after)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def draw(root: Path, seed: int, count: int, only: str | None = None) -> tuple[list[Mutant], int]:
    """Mutants of `count` lines, and the number of all lines with arithmetic.

    Lines are ordered by a hash of the seed, the file and their text, so that a change elsewhere
    leaves the others in the draw.
    """
    lines: dict[str, list[Mutant]] = {}
    for path in files(root):
        file = path.relative_to(root / "src/chimera").as_posix()
        if only and only not in file:
            continue
        source = path.read_text()
        times: dict[str, int] = {}
        by_line: dict[int, list[Mutant]] = {}
        for mutant in mutants(file, source):
            by_line.setdefault(mutant.line, []).append(mutant)
        for _, found in sorted(by_line.items()):
            here = found[0].text
            times[here] = times.get(here, 0) + 1
            lines[f"{seed} {file} {here} {times[here]}"] = found
    order = sorted(lines, key=lambda line: hashlib.sha256(line.encode()).digest())
    drawn = []
    for line in order[:count]:
        rng, found = random.Random(line), lines[line]
        kind = rng.choice(sorted({mutant.kind for mutant in found}))
        drawn.append(rng.choice([mutant for mutant in found if mutant.kind == kind]))
    return drawn, len(lines)


def files(root: Path) -> list[Path]:
    """Every file of the mutated rooms."""
    return sorted(path for room in ROOMS for path in (root / "src/chimera" / room).rglob("*.py"))


def mutants(file: str, source: str) -> Iterator[Mutant]:
    """Every mutation of a file that is valid and another program."""
    same, lines = ast.dump(ast.parse(source)), source.splitlines()
    data, starts = source.encode(), [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, kind, new in _changes(ast.parse(source)):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        after = ast.unparse(new)
        wrapped = after if isinstance(new, ast.Constant | ast.Name) else f"({after})"
        changed = (data[:begin] + wrapped.encode() + data[end:]).decode()
        try:
            different = ast.dump(ast.parse(changed)) != same
        except SyntaxError:  # within an f-string, or a name where none may stand
            continue
        if different:
            line, column = lines[node.lineno - 1], node.col_offset
            text, place = line.split("  #")[0].strip(), column - len(line) + len(line.lstrip())
            yield Mutant(file, node.lineno, kind, ast.unparse(node), after, text, place, changed)


def _changes(tree: ast.AST) -> Iterator[tuple[ast.expr, str, ast.expr]]:
    axes = {id(node) for call in ast.walk(tree) for node in _axes(call)}
    for node in _arithmetic(tree):
        if id(node) in axes:
            value = ast.literal_eval(node)
            other = {-1: -2, -2: -1, 0: 1, 1: 0}.get(value, value - 1 if value > 0 else value + 1)
            yield node, "axis", ast.parse(repr(other), mode="eval").body
        elif isinstance(node, ast.BinOp):
            if type(node.op) in SWAP:
                yield node, "sign", ast.BinOp(node.left, SWAP[type(node.op)](), node.right)
            if isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div | ast.BitAnd):
                yield node, "missing term", node.left
            if isinstance(node.op, ast.Add | ast.Mult | ast.BitAnd):
                yield node, "missing term", node.right
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Invert):
            yield node, "sign", node.operand
        elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAP:
            swapped = SWAP[type(node.ops[0])]()
            yield node, "off by one", ast.Compare(node.left, [swapped], node.comparators)
        elif isinstance(node, ast.Constant) and type(node.value) is float:
            values = (2 * node.value, node.value / 2) if node.value else (1.0,)
            for value in values:
                yield node, "constant", ast.Constant(value)
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield node, "off by one", ast.Constant(node.value + 1)
            if node.value:
                yield node, "off by one", ast.Constant(node.value - 1)


def _arithmetic(tree: ast.AST) -> Iterator[ast.expr]:
    """Expressions outside types, messages and decorators."""
    text = isinstance(tree, ast.BinOp) and any(_is_text(x) for x in (tree.left, tree.right))
    if isinstance(tree, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    if isinstance(tree, ast.expr) and not text:
        yield tree
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _arithmetic(child)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _axes(call: ast.AST) -> Iterator[ast.expr]:
    """Integers of a call that name an axis."""
    if not isinstance(call, ast.Call):
        return
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    named = [key.value for key in call.keywords if key.arg in ("dim", "axis")]
    for node in (*(call.args if name in AXIS else ()), *named):
        inner = node.operand if isinstance(node, ast.UnaryOp) else node
        if isinstance(inner, ast.Constant) and type(inner.value) is int:
            yield node
