"""Execute the evidence notebooks, keep their results: `python -m tools.execute_evidence [name …]`.

A test executes them again and compares the text of each result with the one that is kept.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).resolve().parents[1] / "notebooks" / "evidence"
#: What a notebook's file says of the kernel, whatever machine executed it.
METADATA = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}


def executed(path: Path) -> NotebookNode:
    """A notebook with new results, without times and versions of the machine."""
    notebook = nbformat.read(path, as_version=4)
    place = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources=place, record_timing=False
    )
    client.execute()
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.execution_count, cell.metadata = None, nbformat.from_dict({})
            for output in cell.outputs:
                output.pop(
                    "execution_count", None
                ) if output.output_type != "execute_result" else None
    return notebook


def main(names: list[str]) -> None:
    """Execute these notebooks, all without names."""
    chosen = [FOLDER / f"{name}.ipynb" for name in names] or sorted(FOLDER.glob("*.ipynb"))
    for path in chosen:
        nbformat.write(executed(path), path)
        print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
