"""The model card, from the run's record."""

from __future__ import annotations

from typing import Any

import yaml

from chimera.quant.shared.packing import Bytes

_USE = {
    0: "logits = model(ids).logits[0]  # one row per token",
    1: "score = model(ids).logits  # one row per text",
}


def card(about: dict[str, Any], record: dict[str, Any], sizes: Bytes) -> str:
    """README.md of an exported folder.

    Args:
        about: contents of config.json.
        record: contents of the run's run.json.
        sizes: of the trained model.
    """
    config = about["chimera"]
    front = {
        "library_name": "chimera",
        "tags": ["chimera", config["task"]["name"], config["choices"]["mixer"]],
    }
    choices = {g: c for g, c in record["choices"].items() if c != "none"}
    parameters = record["parameters"]
    lines = [
        "---",
        yaml.safe_dump(front, sort_keys=False).strip(),
        "---",
        f"# {record['name']}",
        "",
        "Trained with Chimera. The choices that make it up:",
        "",
        *(f"- `{group}={choice}`" for group, choice in choices.items()),
        "",
        "## Use",
        "",
        "```python",
        "import torch",
        "from chimera.export import load",
        "",
        'model, tokenizer = load("<this folder>")',
        'ids = torch.from_numpy(tokenizer.encode(["A text."])[0])[None]',
        _USE[min(about["outputs"], 1)],
        "```",
        "",
        'or `AutoModel.from_pretrained("<this folder>", trust_remote_code=True)`, with the package',
        "installed either way.",
        "",
        "## Numbers",
        "",
        "| | |",
        "| --- | ---: |",
        *(f"| {name} | {_shown(value)} |" for name, value in record["metrics"].items()),
        f"| optimiser steps | {record['steps']:,} |",
        f"| tokens/s in training | {_shown(record['tokens_per_second'])} |",
        "",
        "## Size",
        "",
        f"{parameters['total']:,} parameters; {sizes.packed / 1e6:.2f} MB with ternary weights"
        f" packed, {sizes.fp16 / 1e6:.2f} MB in fp16, {sizes.fp32 / 1e6:.2f} MB in fp32."
        f" Packed here: {'yes' if about['packed'] else 'no'}. Adapter: {about['adapter']}.",
        "",
        "| component | parameters |",
        "| --- | ---: |",
        *(f"| {name} | {count:,} |" for name, count in parameters.items() if name != "total"),
        "",
        "## Origin",
        "",
        f"Run `{record['identity']}`, seed {record['seed']}, tokenizer sha256"
        f" `{record['tokenizer']['sha256'][:16]}` ({record['tokenizer']['vocab_size']:,} ids), data"
        f" `{record['data']['corpus_sha256'][:16]}`. The whole configuration is in `config.json`.",
    ]
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
