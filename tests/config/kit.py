"""Write folders with a few rows of every task in GLUE's layout, and overrides that choose them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from chimera.data.corpus.glue import SPECS, Spec
from chimera.paths import EXPERIMENTS
from tests.data.glue import sentence
from tests.data.kit import sentences

ROWS = {"train": 40, "valid": 12, "valid_mismatched": 12, "test": 8}


def everything(root: Path) -> Path:
    """Write `glue`, `es_glue`, `text.txt` and `shape`, a small DeBERTa without weights.

    Returns:
        `root`.
    """
    (root / "text.txt").write_text("\n\n".join(sentences(300)))
    rng = np.random.default_rng(0)
    for name, spec in SPECS.items():
        folder = root / ("es_glue" if name.endswith("_es") else "glue") / spec.folder
        folder.mkdir(parents=True)
        for part, rows in ROWS.items():
            if part in spec.files:
                file = folder / spec.files[part][0]
                file.write_text(_text(spec, rows, rng, "," if file.suffix == ".csv" else "\t"))
    some = next((EXPERIMENTS / "titan/shapes").glob("*/*"))
    shape = json.loads((some / "config.json").read_text())
    (root / "shape").mkdir()
    (root / "shape/config.json").write_text(json.dumps(shape | {"model_type": "deberta-v2"}))
    for file in some.glob("tokenizer*"):
        shutil.copy(file, root / "shape")
    return root


def sources(of: list[dict[str, Any]], file: Path) -> str:
    """Sources of a mixture that are all one file, with the weights that they had."""
    paths = ",".join(f"{key}: {file}" for key in ("path", "valid_path", "test_path"))
    each = [f"{{{paths},weight: {source['weight']}}}" for source in of]
    return f"[{','.join(each)}]"


def here(config: dict[str, Any], scale: str, root: Path) -> list[str]:
    """Overrides with which a job runs on a machine without GPU, hub and large vocabularies.

    Args:
        config: configuration of the job.
        scale: scale of the job.
        root: folder that `everything` wrote.
    """
    choices, words = config["choices"], list[str]()
    if choices["data"] in ("glue", "es_glue"):
        words += [f"data.path={root / choices['data']}"]
    if choices["data"] == "mixture":
        words += [f"data.sources={sources(config['data']['sources'], root / 'text.txt')}"]
    if scale != "paper":
        return words
    words += ["precision=fp32"]
    if choices["data"] in ("text", "wikitext2", "redpajama_es"):
        words += ["data=pydocs", "tokenizer=sentencepiece"]
    if choices["data"] == "alpaca":
        words += ["data=instruct"]
    if choices["model"] == "hf":
        known = EXPERIMENTS.glob(f"*/shapes/{config['model']['name']}")
        words += [f"model.name={next(known, root / 'shape')}", "model.pretrained=false"]
    return words


def _text(spec: Spec, rows: int, rng: np.random.Generator, between: str) -> str:
    columns = [spec.first[0], *spec.second[:1], spec.label[0]]
    lines = [between.join(columns)]
    for number in range(rows):
        texts = [sentence(rng) for _ in columns[:-1]]
        label = spec.labels[number % len(spec.labels)] if spec.labels else f"{number % 5}.0"
        lines.append(between.join([*texts, label]))
    return "\n".join(lines) + "\n"
