"""Write the code of an exported model as files of one folder, without this package.

transformers copies the files that a modeling file imports by `from .name import`, and resolves no
folders below. So each module that the model needs becomes `chimera_<path>.py`, its own imports
rewritten, its other lines as they are:

    from chimera.ops.decay import step      from .chimera_ops_decay import step
    from chimera.ops import decay           from . import chimera_ops_decay as decay
    from jaxtyping import Float             from typing import Annotated as Float
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

ENTRY = "chimera.export.hf.modeling"
#: Module with the classes of a model whose body is transformers' own.
BODY = "chimera.export.hf.body"
#: Module with the class of a model of transformers that LiZAttention is grafted into.
LIZA = "chimera.export.hf.liza"
#: Modules with a file name that transformers or people know.
NAMES = {
    ENTRY: "modeling_chimera",
    BODY: "modeling_chimera",  # of another model
    LIZA: "modeling_liza",
    "chimera.export.hf.configuration": "configuration_chimera",
}
#: Packages that the folder needs; others are imported where a function calls them.
NEEDED = frozenset({"torch", "einops", "transformers", "safetensors", *sys.stdlib_module_names})


def write(
    folder: Path, nodes: Mapping[str, Any], entry: str = ENTRY, base: str | None = None
) -> list[str]:
    """Write all files of code; returns their names.

    Args:
        folder: exists.
        nodes: of the configuration; the classes that they name are shipped.
        entry: module with the classes that transformers loads.
        base: class of transformers that the class of `LIZA` extends.

    Raises:
        UserError: a class is in no Python file, or two modules would have the same file.
    """
    targets = sorted(set(_targets(nodes)))
    own = {"chimera", *(target.partition(".")[0] for target in targets)}
    texts = {}
    modules: dict[str, str] = {}  # by file
    waiting = [entry, *(target.rpartition(".")[0] for target in targets)]
    while waiting:
        module = waiting.pop()
        file = _file(module)
        if modules.setdefault(file, module) != module:
            raise UserError(f"{module} and {modules[file]} would both be {file}.py; rename one")
        if file in texts:
            continue
        text, needs = rewritten(module, own)
        waiting += needs
        head = f"# {module} of chimera-lm {VERSION}, Apache-2.0; imports rewritten by its export.\n"
        texts[file] = head + text
    if targets:
        texts[_file(entry)] += _parts(targets)
    if base:
        texts[_file(entry)] = texts[_file(entry)].replace("LlamaForCausalLM", base)
    # transformers takes the model's class that it last loaded with the same class of configuration,
    # and that class is the same for files of equal contents.
    digest = hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest()[:16]
    if "configuration_chimera" in texts:
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


def _file(module: str) -> str:
    return NAMES.get(module, module.replace(".", "_"))


@cache
def _module(base: str, name: str) -> str:
    """The module that `from base import name` needs: base.name if it is one, else base."""
    spec = importlib.util.find_spec(base)  # imports the packages above, not the module
    for folder in (spec and spec.submodule_search_locations) or ():
        inner = Path(folder) / name
        if inner.with_suffix(".py").is_file() or (inner / "__init__.py").is_file():
            return f"{base}.{name}"
    return base


def _parts(targets: list[str]) -> str:
    """Lines that fill the table of the parts that a configuration may name."""
    lines = ["", ""]
    for number, (module, _, name) in enumerate(target.rpartition(".") for target in targets):
        lines.append(f"from .{_file(module)} import {name} as part_{number}")
    rows = [f'    "{target}": part_{number},' for number, target in enumerate(targets)]
    return "\n".join([*lines, "", "PARTS |= {", *rows, "}"]) + "\n"


def rewritten(module: str, own: set[str]) -> tuple[str, list[str]]:
    """A module with its import statements rewritten, and the modules that they then import.

    Args:
        module: its dotted name.
        own: packages whose modules become files of the folder.

    Raises:
        UserError: it is in no Python file, or has `import` of such a package.
    """
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise UserError(f"{module} is in no Python file, so an exported folder cannot hold it")
    source = Path(spec.origin).read_text(encoding="utf-8")
    lines = source.splitlines()
    needs: list[str] = []
    edits = list(_edits(ast.parse(source), module, own, needs))
    for node, new in sorted(edits, key=lambda edit: -edit[0].lineno):
        indent = " " * node.col_offset
        lines[node.lineno - 1 : node.end_lineno] = [indent + line for line in new]
    return "\n".join(lines) + "\n", needs


def _edits(
    node: ast.AST, module: str, own: set[str], needs: list[str]
) -> Iterator[tuple[ast.stmt, list[str]]]:
    """Statements below a node, and the lines in their place."""
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        yield node, ["pass"]
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            base = importlib.util.resolve_name("." * node.level + base, module.rpartition(".")[0])
        package = base.partition(".")[0]
        if package in own:
            yield node, [line for alias in node.names for line in _own(base, alias, needs)]
        elif package not in NEEDED:
            yield node, [line for alias in node.names for line in _foreign(base, alias)]
    else:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if foreign := [name for name in names if name.partition(".")[0] in own]:
            raise UserError(
                f"{module} has «import {foreign[0]}»; an exported folder needs «from … import»"
            )
        for child in ast.iter_child_nodes(node):
            yield from _edits(child, module, own, needs)


def _own(base: str, alias: ast.alias, needs: list[str]) -> Iterator[str]:
    """Lines in the place of one name that is imported from the own packages."""
    module = _module(base, alias.name)
    needs.append(module)
    name = _file(module)
    if module == base:
        yield f"from .{name} import {ast.unparse(alias)}"
        return
    # transformers finds files by lines of the form «from .name import …» only.
    yield f"from .{name} import __name__ as _{name}"
    yield f"from . import {name} as {alias.asname or alias.name}"


def _foreign(base: str, alias: ast.alias) -> Iterator[str]:
    """Lines in the place of one name of a package that the folder does without.

    Shapes of tensors and ranges of numbers are annotations alone, which nothing checks there.
    """
    name = alias.asname or alias.name
    if base == "jaxtyping":
        yield f"from typing import Annotated as {name}"
    elif base == "annotated_types":
        yield f"def {name}(*bounds, **named): pass"
    else:
        yield "from importlib import import_module"
        yield f'{name} = import_module("{base}").{alias.name}'
