"""The model card, from the run's record."""

from __future__ import annotations

from typing import Any

import yaml

from chimera.config.trusted_config import LEFT_OUT
from chimera.quant.shared.packing import Bytes

_OWN_USE = {
    0: "logits = model(ids).logits[0]  # one row per token",
    1: "score = model(ids).logits  # one row per text",
}
#: By transformers' class: its pipeline, and a first call.
_PIPELINES = {
    "ChimeraForMaskedLM": ("fill-mask", 'print(pipe(f"The {pipe.tokenizer.mask_token} is red."))'),
    "ChimeraForCausalLM": (
        "text-generation",
        'print(pipe("The", max_new_tokens=20, do_sample=False))',
    ),
    "ChimeraForSequenceClassification": ("text-classification", 'print(pipe("A text."))'),
}


def card(
    about: dict[str, Any],
    record: dict[str, Any],
    sizes: Bytes,
    missing: str | None = None,
    *,
    beside: bool = False,
) -> str:
    """README.md of an exported folder.

    Args:
        about: contents of config.json.
        record: contents of the run's run.json.
        sizes: of the trained model.
        missing: why there is no tokenizer for transformers.
        beside: whether an adapter is beside the weights.
    """
    chosen = record["choices"].items()
    choices = {g: c for g, c in chosen if c != "none" and g not in LEFT_OUT}
    parameters = record["parameters"]
    lines = [
        "---",
        yaml.safe_dump(_front(about, record), sort_keys=False).strip(),
        "---",
        f"# {record['name']}",
        "",
        "Trained with Chimera. The choices that make it up:",
        "",
        *(f"- `{group}={choice}`" for group, choice in choices.items()),
        "",
        *_use(about, missing, beside),
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


def _front(about: dict[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    """The card's metadata, with the numbers as the hub reads them."""
    config = about["chimera"]
    pipeline = _PIPELINES.get(_architecture(about))
    front: dict[str, Any] = {
        "library_name": "transformers" if pipeline else "chimera",
        "tags": ["chimera", config["task"]["name"], config["choices"]["mixer"]],
    }
    if pipeline is None:
        return front
    data = config["choices"].get("data") or "data"
    results = [
        {"type": name, "name": name, "value": value}
        for name, value in record["metrics"].items()
        if isinstance(value, int | float) and value == value
    ]
    front["pipeline_tag"] = pipeline[0]
    if not results:
        return front
    result = {
        "task": {"type": pipeline[0]},
        "dataset": {"name": data, "type": data},
        "metrics": results,
    }
    return front | {"model-index": [{"name": record["name"], "results": [result]}]}


def _architecture(about: dict[str, Any]) -> str:
    return str(next(iter(about.get("architectures", [])), "")).replace("Body", "")


def _use(about: dict[str, Any], missing: str | None, beside: bool) -> list[str]:
    """The section on use: by transformers alone, and by this package."""
    lines = ["## Use", ""]
    if pipeline := _PIPELINES.get(_architecture(about)):
        name, call = pipeline
        lines += [
            "With transformers alone (`pip install torch transformers einops`). The code in this"
            " folder then runs: read it, or trust who made it.",
            "",
            "```python",
            "from transformers import pipeline",
            "",
            f'pipe = pipeline("{name}", "<this folder>", trust_remote_code=True)',
            call,
            "```",
            "",
        ]
        if missing:
            lines += [f"It needs a tokenizer of yours: {missing}.", ""]
        if about["packed"]:
            lines += ["The ternary weights are packed: they compute, and cannot be trained.", ""]
        if (
            about["adapter"].endswith("kept beside the weights")
            or "kept separate" in about["adapter"]
        ):
            lines += [
                "The adapter is beside the weights: `PeftModel.from_pretrained(model,"
                ' "<this folder>/adapter")` adds it, if it is of a kind that peft knows.',
                "",
            ]
    elif about.get("auto_map"):
        lines += [
            'With transformers and chimera-lm: `AutoModel.from_pretrained("<this folder>",'
            " trust_remote_code=True)`.",
            "",
        ]
    return [
        *lines,
        "With `pip install chimera-lm`, by which no code of the folder runs:",
        "",
        "```python",
        "import torch",
        "from chimera.export import load",
        "",
        'model, tokenizer = load("<this folder>")',
        'ids = torch.from_numpy(tokenizer.encode(["A text."])[0])[None]',
        _OWN_USE[min(about["outputs"], 1)],
        "```",
        "",
    ]


def _shown(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
