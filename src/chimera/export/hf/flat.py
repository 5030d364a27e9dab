"""Write the code of an exported model as files of one folder, without this package.

transformers copies the files that a modeling file imports by `from .name import`, and resolves no
folders below. So each module that the model needs becomes `chimera_<path>.py`, its own imports
rewritten, its other lines as they are:

    from chimera.ops.decay import step      from .chimera_ops_decay import step
    from chimera.ops import decay           from . import chimera_ops_decay as decay
    from jaxtyping import Float             from .chimera_shapes import Float
    from fla.ops.x import f                 f = import_module("fla.ops.x").f     inside functions

The folder then needs torch, einops and transformers. Kernels that are compiled on first use stay
behind: their C++ source is no Python file, and without it the modules compute in torch.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from chimera.errors import UserError
from chimera.program import VERSION

#: Modules with a file name that transformers or people know.
NAMES = {
    "chimera.export.hf.modeling": "modeling_chimera",
    "chimera.export.hf.body": "modeling_chimera",  # of another model
    "chimera.export.hf.configuration": "configuration_chimera",
}
ENTRY = "chimera.export.hf.modeling"
PARTS = "chimera.export.hf.parts"
#: Module with the classes of a model whose body is transformers' own.
BODY = "chimera.export.hf.body"
#: Packages that the folder needs; others are imported where a function calls them.
NEEDED = frozenset({"torch", "einops", "transformers", "safetensors", *sys.stdlib_module_names})
#: Packages of which the folder needs only names in annotations.
ANNOTATIONS = frozenset({"jaxtyping", "annotated_types"})
#: Of these, what is called.
RANGES = frozenset({"Ge", "Gt", "Le", "Lt"})
SHAPES = '''\
"""Names in annotations: shapes of tensors and ranges of numbers, which nothing checks here."""

from typing import Any


class _Shape:
    def __class_getitem__(cls, item: Any) -> Any:
        return item[0] if isinstance(item, tuple) else item


class _Range:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.bounds = args


'''


def write(folder: Path, nodes: Mapping[str, Any], entry: str = ENTRY) -> list[str]:
    """Write all files of code; returns their names.

    Args:
        folder: exists.
        nodes: of the configuration; the classes that they name are shipped.
        entry: module with the classes that transformers loads.

    Raises:
        UserError: a class is in no Python file, or two modules would have the same file.
    """
    targets = sorted(set(_targets(nodes)))
    sources = _closure([entry, *(target.rpartition(".")[0] for target in targets)], targets)
    names = {module: NAMES.get(module, module.replace(".", "_")) for module in sources}
    if len(set(names.values())) < len(names):
        raise UserError("two modules of this model have the same name with _ for dots; rename one")
    own = {module.partition(".")[0] for module in sources}
    shapes: set[str] = set()
    texts = {}
    for module, source in sources.items():
        if module == PARTS:
            text = _table(targets, names)
        else:
            text = _Rewriter(module, source, names, own, shapes).text()
        head = f"# {module} of chimera-lm {VERSION}, Apache-2.0; imports rewritten by its export.\n"
        texts[names[module]] = head + text
    if shapes:
        lines = (f"{n} = {'_Range' if n in RANGES else '_Shape'}" for n in sorted(shapes))
        texts["chimera_shapes"] = SHAPES + "\n".join(lines) + "\n"
    # transformers takes the model's class that it last loaded with the same class of configuration,
    # and that class is the same for files of equal contents.
    digest = hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest()[:16]
    texts["configuration_chimera"] += f"\n# Of the code {digest}.\n"
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return sorted(f"{name}.py" for name in texts)


def _targets(node: Any) -> Iterator[str]:
    """Every class or function that nodes name, outside callbacks."""
    if isinstance(node, Mapping):
        if "_target_" in node:
            yield node["_target_"]
        node = [value for key, value in node.items() if key != "callbacks"]
    if isinstance(node, list):
        for value in node:
            yield from _targets(value)


def _closure(roots: list[str], targets: list[str]) -> dict[str, str]:
    """Source of each module that the roots import, at any depth, of their own packages."""
    own = {"chimera", *(target.partition(".")[0] for target in targets)}
    found: dict[str, str] = {}
    waiting = list(roots)
    while waiting:
        module = waiting.pop()
        if module in found:
            continue
        found[module] = _source(module)
        if module == PARTS:
            continue  # the table of an exported folder imports the targets only
        for node in ast.walk(_without_type_checking(ast.parse(found[module]))):
            for name in _imported(node, module, own):
                if name not in waiting:
                    waiting.append(name)
    return dict(sorted(found.items()))


def _source(module: str) -> str:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise UserError(f"{module} is in no Python file, so an exported folder cannot hold it")
    return Path(spec.origin).read_text(encoding="utf-8")


def _imported(node: ast.AST, module: str, own: set[str]) -> Iterator[str]:
    """Modules of the own packages that an import statement names."""
    if isinstance(node, ast.ImportFrom):
        base = _absolute(node, module)
        if base.partition(".")[0] in own:
            yield from {_module(base, alias.name) for alias in node.names}
    elif isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.partition(".")[0] in own:
                raise UserError(
                    f"{module} has «import {alias.name}»; an exported folder needs «from … import»"
                )


def _absolute(node: ast.ImportFrom, module: str) -> str:
    """Dotted name of what an import statement imports from."""
    if not node.level:
        return node.module or ""
    above = module.split(".")[: -node.level]
    return ".".join([*above, node.module] if node.module else above)


@cache
def _module(base: str, name: str) -> str:
    """The module that `from base import name` needs: base.name if it is one, else base."""
    spec = importlib.util.find_spec(base)  # imports the packages above, not the module
    for folder in (spec and spec.submodule_search_locations) or ():
        inner = Path(folder) / name
        if inner.with_suffix(".py").is_file() or (inner / "__init__.py").is_file():
            return f"{base}.{name}"
    return base


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def _without_type_checking(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and _is_type_checking(node):
            node.body = [ast.Pass()]
    return tree


def _table(targets: list[str], names: Mapping[str, str]) -> str:
    """The module that stands in the place of `PARTS`."""
    lines = ['"""The classes and functions that the configuration names."""', ""]
    rows = []
    for number, target in enumerate(targets):
        module, _, name = target.rpartition(".")
        lines.append(f"from .{names[module]} import {name} as part_{number}")
        rows.append(f'    "{target}": part_{number},')
    lines += ["", "PARTS = {", *rows, "}", "", "", "def named(target):"]
    lines += ["    if target not in PARTS:"]
    lines += ['        raise ValueError(f"{target} is not among the parts of this folder")']
    return "\n".join([*lines, "    return PARTS[target]"]) + "\n"


class _Rewriter:
    """Rewrites the import statements of a module, and leaves every other line."""

    def __init__(
        self, module: str, source: str, names: Mapping[str, str], own: set[str], shapes: set[str]
    ) -> None:
        self.module = module
        self.source = source
        self.names = names
        self.own = own
        self.shapes = shapes  # names of annotations, added to

    def text(self) -> str:
        """The rewritten module."""
        lines = self.source.splitlines()
        for node, new in sorted(self._edits(ast.parse(self.source)), key=lambda e: -e[0].lineno):
            indent = " " * node.col_offset
            assert node.end_lineno is not None
            lines[node.lineno - 1 : node.end_lineno] = [indent + line for line in new]
        return "\n".join(lines) + "\n"

    def _edits(self, tree: ast.Module) -> Iterator[tuple[ast.stmt, list[str]]]:
        waiting: list[ast.AST] = [tree]
        while waiting:
            for node in ast.iter_child_nodes(waiting.pop()):
                if isinstance(node, ast.If) and _is_type_checking(node):
                    yield node, ["pass"]
                elif isinstance(node, ast.ImportFrom):
                    if (new := self._import(node)) is not None:
                        yield node, new
                else:
                    waiting.append(node)

    def _import(self, node: ast.ImportFrom) -> list[str] | None:
        base = _absolute(node, self.module)
        package = base.partition(".")[0]
        if package in self.own:
            return [line for alias in node.names for line in self._own(base, alias)]
        if package in ANNOTATIONS:
            self.shapes.update(alias.name for alias in node.names)
            shown = ", ".join(map(ast.unparse, node.names))
            return [f"from .chimera_shapes import {shown}"]
        if package in NEEDED:
            return None
        return [
            "from importlib import import_module",
            *(
                f'{alias.asname or alias.name} = import_module("{base}").{alias.name}'
                for alias in node.names
            ),
        ]

    def _own(self, base: str, alias: ast.alias) -> Iterator[str]:
        module = _module(base, alias.name)
        name = self.names[module]
        if module == base:
            yield f"from .{name} import {ast.unparse(alias)}"
            return
        # transformers finds files by lines of the form «from .name import …» only.
        yield f"from .{name} import __name__ as _{name}"
        yield f"from . import {name} as {alias.asname or alias.name}"
