"""Execute notebooks, keep their results: `python -m tools.execute_evidence [name …]`.

Without names, those of notebooks/evidence/. A test executes these again and compares the text of
each result with the one that is kept. A notebook of notebooks/ trains small models in a folder that
is removed afterwards; `tables` reads the committed records with CHIMERA_RECORDS=$PWD/experiments.
"""

from __future__ import annotations

import base64
import os
import sys
import tempfile
from io import BytesIO
from pathlib import Path
from unittest.mock import patch

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from PIL import Image

FOLDER = Path(__file__).resolve().parents[1] / "notebooks" / "evidence"
#: What a notebook's file says of the kernel, whatever machine executed it.
METADATA = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}


def executed(path: Path, place: Path | None = None) -> NotebookNode:
    """A notebook with new results, without times, progress and versions of the machine.

    Args:
        path: of the notebook.
        place: the folder in which it is executed; by default its own.
    """
    notebook = nbformat.read(path, as_version=4)
    context = {"metadata": {"path": str(place or path.parent)}}
    client = NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources=context, record_timing=False
    )
    client.execute()
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.execution_count, cell.metadata = None, nbformat.from_dict({})
            cell.outputs = [output for output in cell.outputs if not _is_progress(output)]
            for output in cell.outputs:
                if output.output_type == "execute_result":
                    output.execution_count = None
                    output.data.pop("text/html", None)  # the text shows the same frame
                    _make_smaller(output.data)
                else:
                    output.pop("execution_count", None)
    return notebook


def _is_progress(output: NotebookNode) -> bool:
    """Whether it is a line that a run prints, which rich displays as HTML."""
    shown = output.output_type == "display_data" and "text/html" in output.data
    return shown or output.get("name") == "stderr"


def _make_smaller(data: NotebookNode) -> None:
    """Give a picture a palette of 64 colours."""
    if "image/png" in data:
        picture = Image.open(BytesIO(base64.b64decode(data["image/png"])))
        smaller = BytesIO()
        picture.convert("RGB").quantize(64).save(smaller, "png", optimize=True)
        data["image/png"] = base64.b64encode(smaller.getvalue()).decode()


def main(names: list[str]) -> None:
    """Execute these notebooks; without names all of the evidence."""
    for path in [found(name) for name in names] or sorted(FOLDER.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as place:
            if path.parent == FOLDER:
                notebook = executed(path)
            else:
                with patch.dict(os.environ, CHIMERA_RUNS=f"{place}/runs"):
                    notebook = executed(path, Path(place))
        nbformat.write(notebook, path)
        print(path)


def found(name: str) -> Path:
    """File of a notebook in notebooks/evidence/ or notebooks/."""
    path = FOLDER / f"{name}.ipynb"
    return path if path.is_file() else FOLDER.parent / f"{name}.ipynb"


if __name__ == "__main__":
    main(sys.argv[1:])
