"""Tables of the papers that are computed without runs, each by a module of this room.

`experiments/<paper>/<table>.yaml` names the module (`computed:`), so that `chimera list tables` and
`chimera table <paper>/<table>` find it. Its `main(arguments)` computes and calls `publish`.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chimera.config.arguments import read
from chimera.config.tables import load_computed
from chimera.errors import UserError, one_line
from chimera.paths import home
from chimera.report.formatting import block, markdown, show_grid
from chimera.report.markdown import grid
from chimera.report.style import save
from chimera.safe_io import check_place, make_folder, replacing, write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Grid:
    """Some numbers of a table.

    Args:
        name: of the CSV file.
        title: above the numbers.
        head, body: cells of its lines, as they are shown.
    """

    name: str
    title: str
    head: Sequence[str]
    body: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Options:
    """Options of a computed table.

    Args:
        to: folder of its files; None: `reports/<paper>/<table>`.
    """

    to: Path | None = None


def place(path: str, arguments: Sequence[str]) -> Path:
    """The folder for the files of a table, by its command line; looked at before the work.

    Raises:
        UserError: it cannot be made, or an argument is none.
    """
    given = read(Options, arguments, f"chimera table {path} [to=<folder>]").to
    check_place(folder := given or home() / "reports" / path, key="to")
    return folder


def publish(path: str, grids: Sequence[Grid], figures: Mapping[str, Figure], folder: Path) -> None:
    """Print a computed table; write its report.md, a CSV file for each grid and its figures.

    Args:
        path: `<paper>/<table>`.
        grids: in the order of the report.
        figures: by the names of their files.
        folder: of the files.
    """
    table = load_computed(path)
    make_folder(folder, of=folder, key="to")
    for part in grids:
        show_grid(part.title, part.head, (), part.body)
        with replacing(folder / f"{part.name}.csv") as new, new.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([part.head, *part.body])
    for name, figure in figures.items():
        save(figure, folder / f"{name}.png", ["png"])
    parts = [f"# {markdown(table.title)}", f"{markdown(table.source)}. Computed without runs."]
    parts += [markdown(table.note)] * bool(table.note)
    for part in grids:
        parts += [f"## {markdown(part.title)}", grid(part.head, part.body)]
    parts += [f"![{name}]({name}.png)" for name in figures]
    parts += ["## Reproduce", block(f"chimera table {path}", "bash")]
    write_atomic(folder / "report.md", "\n\n".join(parts) + "\n")
    print(folder)


def run(main: Callable[[Sequence[str]], None]) -> None:
    """Run `main` on the command line's arguments; for bad ones print one line and exit with 2."""
    try:
        main(sys.argv[1:])
    except UserError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        sys.exit(2)
