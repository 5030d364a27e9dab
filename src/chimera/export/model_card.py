"""The model card of an exported folder: `model_card.jinja`, filled with the run's record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from chimera.config.trusted_config import LEFT_OUT
from chimera.quant.shared.packing import Bytes

#: By the end of a class's name: the pipeline of transformers, and a first call.
PIPELINES = {
    "ForMaskedLM": ("fill-mask", 'print(pipe(f"The {pipe.tokenizer.mask_token} is red."))'),
    "ForCausalLM": (
        "text-generation",
        'print(pipe("The", max_new_tokens=20, do_sample=False))',
    ),
    "ForSequenceClassification": ("text-classification", 'print(pipe("A text."))'),
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
        beside: whether an adapter is kept beside the weights.
    """
    made = next(iter(about.get("architectures", [])), "")
    pipeline, first_call = next((PIPELINES[end] for end in PIPELINES if end in made), (None, None))
    choices = about["chimera"]["choices"]
    data = choices.get("data") or "data"
    metrics = record["metrics"]
    results = [
        EvalResult(
            str(pipeline), data, data, metric_type=name, metric_name=name, metric_value=value
        )
        for name, value in metrics.items()
        if pipeline and isinstance(value, int | float) and value == value
    ]
    front = ModelCardData(
        library_name="transformers" if pipeline else "chimera",
        tags=["chimera", about["chimera"]["task"]["name"], choices["mixer"]],
        pipeline_tag=pipeline,
        model_name=record["name"],
        eval_results=results,
    )
    chosen = record["choices"].items()
    filled = ModelCard.from_template(
        front,
        template_path=str(Path(__file__).with_suffix(".jinja")),
        about=about,
        record=record,
        sizes=sizes,
        missing=missing,
        first_call=first_call,
        choices={g: c for g, c in chosen if c != "none" and g not in LEFT_OUT},
        metrics={k: f"{v:,.4g}" if isinstance(v, float) else v for k, v in metrics.items()},
        beside=beside,
    )
    return f"{filled}\n"
