"""Write a finished run as a folder.

config.json         the run's configuration, how the model's head looks, what is packed; of a model
                    with LiZAttention grafted in, its base's own configuration too
model.safetensors   weights; ternary ones packed by option, 1.6 bits each
adapter/            what of an adapter is not merged, laid out as peft does it
tokenizer/          ours; tokenizer.json and its configuration for AutoTokenizer where there is one
body/config.json    of a Hugging Face body
*.py                code for transformers
README.md           the model card
export.json         hashes of the files
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from hydra.utils import instantiate
from torch import Tensor, nn

from chimera.adapter.graft.memory import GraftedMemory
from chimera.adapter.shared import files as adapters
from chimera.adapter.shared.low_rank import adapted
from chimera.adapter.shared.merge import merge, prune
from chimera.config.groups import ZOO, defaults, node
from chimera.config.start_model import causal_of
from chimera.config.trusted_config import LEFT_OUT, without_fetching
from chimera.contract import Packable
from chimera.data.tokenizer.base import Tokenizer
from chimera.errors import UserError
from chimera.export.hf import flat
from chimera.export.hf import tokenizer as hf_tokenizer
from chimera.export.target import check_target, replacing_folder
from chimera.model import four_bit
from chimera.model.backbone import Trunk
from chimera.model.classifier import Classifier
from chimera.model.restore import save_body
from chimera.quant.shared.packing import Bytes, byte_report, packed
from chimera.rundir.directory import RunDir
from chimera.rundir.tensors import save_tensors
from chimera.safe_io import read_json, write_atomic, write_json
from chimera.train.restore import restore

#: Builder of the models whose code an exported folder holds.
BUILDER = "chimera.model.assemble.from_parts"
FILE = "modeling_chimera"
#: Code of a model that only this package can build.
SHIM = '''\
"""Loads through the package chimera, which has to be installed."""

from chimera.export.hf_model import ChimeraConfig, ChimeraModel
'''
#: By the head of a model: the pipeline of transformers.
PIPELINES = {
    "MaskedLM": "fill-mask",
    "CausalLM": "text-generation",
    "SequenceClassification": "text-classification",
}


def export(
    run: RunDir, to: Path, *, pack: bool = False, adapter: str = "merge", trust: bool = False
) -> dict[str, Any]:
    """Write a finished run as a folder; returns the contents of its config.json.

    Args:
        run: the run; of its checkpoints the one that its final test was made with.
        to: a new or empty folder, or that of an earlier export, which is replaced.
        pack: hold ternary weights in 1.6 bits, 8-bit weights in 8.
        adapter: `merge` it into the weights where that is exact, and keep the rest beside them;
            `keep` all of it beside them; `alone` writes nothing else.
        trust: load the Hugging Face model that the run's configuration names, if it has to be.

    Raises:
        UserError: the run is not finished, or the folder holds other files, or nothing can be
            packed.
    """
    config = run.config()
    record = finished(run)
    check_target(to)
    restored = restore(run, trust=trust)
    tokenizer = restored.tokenizer
    model: Any = restored.task.model.eval()
    if four_bit.layers(model):
        four_bit.widen(model)
        config["model"] |= {"dtype": "bf16"}
    sizes = byte_report(model)["total"]
    treatment = treat_adapter(model, adapter)
    if pack and not any(isinstance(module, Packable) for module in model.modules()):
        raise UserError("packed=true: this model has no ternary or 8-bit weights; leave it out")
    about = _about(config, model, restored.task, tokenizer)
    about |= {"packed": pack, "adapter": treatment}
    missing = None
    with replacing_folder(to) as made:
        if adapted(model):
            adapters.save(grafted(model) or model, made / "adapter")
        if adapter != "alone":
            model = packed(model) if pack else model
            weights, about["tied"] = distinct(without_adapters(grafted(model) or model))
            save_tensors(weights, made / "model.safetensors", {"format": "pt"})
            save_body(model, made)
            tokenizer.save(made / "tokenizer")
            opening = tokenizer.opening(packed=restored.task.plain_text)
            missing = _write_code(made, about, model, tokenizer, opening)
            write_json(made / "config.json", about)
        beside = (made / "adapter").exists()
        write_atomic(made / "README.md", card(about, record, sizes, missing, beside=beside))
    return about


def finished(run: RunDir) -> dict[str, Any]:
    """The record of a finished run.

    Raises:
        UserError: it is not finished.
    """
    record = run.record()
    if not record:
        raise UserError(f"run={run.path} is not finished; only finished runs are exported")
    return record


def treat_adapter(model: nn.Module, how: str) -> str:
    """Merge an adapter in place or leave it; returns which, in words."""
    layers = adapted(model)
    if not layers:
        if how == "alone":
            raise UserError("adapter=alone: this run has no adapter; leave it out")
        return "none"
    pruned = ""
    if any(layer.update.diagonal() is not None for layer in layers.values()):
        ranks = prune(model).values()
        pruned = f"pruned to ranks {min(ranks)} to {max(ranks)}; " if ranks else ""
    return pruned + (str(merge(model)) if how == "merge" else "kept beside the weights")


def _about(
    config: dict[str, Any], model: nn.Module, task: Any, tokenizer: Tokenizer
) -> dict[str, Any]:
    """Contents of config.json: the configuration without the adapter, and the head."""
    name = defaults()["adapter"]
    adapter = node("adapter", name)
    if "inner" in config["adapter"]:  # a graft stays; what it was trained by is merged or beside
        name = config["choices"]["adapter"]
        adapter = {**config["adapter"], "inner": adapter}
    choices = {**config["choices"], "adapter": name}
    about = {
        "vocab_size": tokenizer.vocab_size,
        "outputs": 0,
        "chimera": {**config, "adapter": adapter, "choices": choices},
    }
    if isinstance(model, Classifier):
        labels = list(task.labels) or ["score"]
        about |= {
            "outputs": len(labels),
            "classifier": {key: config["task"][key] for key in ("pool", "dropout", "hidden")},
            "id2label": {str(i): label for i, label in enumerate(labels)},
            "label2id": {label: i for i, label in enumerate(labels)},
        }
        if not task.labels:
            about["problem_type"] = "regression"
    return about


def _write_code(
    to: Path, about: dict[str, Any], model: Any, tokenizer: Tokenizer, opening: Sequence[int]
) -> str | None:
    """Write code and tokenizer for transformers; returns why there is no fast tokenizer.

    Args:
        to: the folder, with its weights.
        about: contents of config.json, added to.
        model: as it was written.
        tokenizer: of the model.
        opening: ids before a text, if the model is a decoder.
    """
    config = about["chimera"]
    settings = instantiate(config["model"])
    causal = bool(getattr(model.backbone, "causal", causal_of(config["task"])))
    if isinstance(model.backbone, Trunk) and settings.builder == BUILDER:
        about |= write_parts(to, about, asdict(settings), tokenizer, causal=causal, opening=opening)
    elif inner := grafted(model):
        about |= write_graft(to, inner, _ends(tokenizer, opening))
    else:
        names = without_adapters(model).keys()
        about |= _write_body(to, about, set(names), tokenizer, causal=causal)
    decodes = causal and not about["outputs"]
    return hf_tokenizer.write(
        tokenizer, to, opening=opening if decodes else None, max_len=settings.max_len
    )


def write_parts(
    folder: Path,
    about: dict[str, Any],
    shape: dict[str, Any],
    tokenizer: Tokenizer,
    *,
    causal: bool,
    opening: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Write code that needs nothing of this package; returns keys of config.json.

    Args:
        folder: exists.
        about: other contents of config.json.
        shape: settings of `model=`, every one of them.
        tokenizer: of the model.
        causal: whether the model is a decoder.
        opening: ids before a decoder's text; none or None: its end.
    """
    config = about["chimera"]
    flat.write(folder, {group: config[group] for group in ZOO if group != "adapter"})
    heads = [_language(causal), "SequenceClassification"]
    keys = _keys("Chimera", heads, about, tokenizer, causal=causal) | {
        "shape": shape,
        "tie_word_embeddings": shape["tie_head"],
        "auxiliary": {k: v for k, v in (config["task"].get("weights") or {}).items() if v},
        "hidden_size": shape["dim"],
        "num_hidden_layers": shape["depth"] * shape["loops"],
        "num_attention_heads": shape["heads"],
        "max_position_embeddings": shape["max_len"],
    }
    if causal:
        generation = _ends(tokenizer, opening or ())
        write_json(folder / "generation_config.json", generation)
        keys |= generation
    return keys


def _ends(tokenizer: Tokenizer, opening: Sequence[int]) -> dict[str, int]:
    """Ids with which `generate` begins, ends and pads; `opening` is what is before a text."""
    end = tokenizer.special.sep
    return {
        "pad_token_id": tokenizer.special.pad,
        "bos_token_id": (*opening, end)[0],
        "eos_token_id": end,
    }


def grafted(model: nn.Module) -> Any:
    """The causal model of transformers in a run's model, if it has LiZAttention; else None."""
    found = any(isinstance(module, GraftedMemory) for module in model.modules())
    return getattr(model, "model", None) if found else None


def write_graft(folder: Path, model: Any, ends: Mapping[str, int]) -> dict[str, Any]:
    """Write code for a model with LiZAttention grafted in; returns contents of config.json.

    The class extends the base's own class of transformers, and the configuration is the base's
    with the options of the memories.

    Args:
        folder: made if missing.
        model: causal model of transformers.
        ends: ids in place of the base's, see `_ends`.

    Raises:
        UserError: the base's class is not one of transformers.
    """
    base = type(model)
    if not base.__module__.startswith("transformers."):
        raise UserError(
            f"{base.__name__} is no class of transformers, so code of a folder cannot extend it;"
            " graft.save without whole=True saves what was grafted"
        )
    folder.mkdir(parents=True, exist_ok=True)
    memory = next(module for module in model.modules() if isinstance(module, GraftedMemory))
    flat.write(folder, {}, flat.LIZA, base.__name__)
    generation = json.loads(model.generation_config.to_json_string(ignore_metadata=True))
    write_json(folder / "generation_config.json", generation | ends)
    return without_fetching(json.loads(model.config.to_json_string())) | {
        "architectures": ["LizaForCausalLM"],
        "auto_map": {"AutoModelForCausalLM": "modeling_liza.LizaForCausalLM"},
        "dtype": str(model.dtype).removeprefix("torch."),
        "liza": memory.options | {"mag_weight": round(float(memory.mag_weight), 6)},
        **ends,
    }


def _write_body(
    folder: Path, about: dict[str, Any], names: set[str], tokenizer: Tokenizer, *, causal: bool
) -> dict[str, Any]:
    """Write code for a body of transformers; returns keys of config.json.

    The code needs this package where transformers' classes have other tensors, as in a classifier
    with LiZAttention, and where a builder of a user makes the model.

    Args:
        folder: has `body/config.json`.
        about: other contents of config.json.
        names: of the model's tensors.
        tokenizer: of the model.
        causal: whether the model is a decoder.
    """
    from chimera.export.hf import body
    from chimera.export.hf.configuration import ChimeraConfig

    head = "SequenceClassification" if about["outputs"] else _language(causal)
    settings = read_json(folder / "body" / "config.json")
    keys = _keys("ChimeraBody", [head], about, tokenizer, causal=causal) | {
        "body": settings,
        "tie_word_embeddings": bool(settings.get("tie_word_embeddings", True)),
    }
    for key in ("hidden_size", "num_hidden_layers", "num_attention_heads"):
        keys[key] = settings.get(key)
    if settings:
        with torch.device("meta"):
            model = getattr(body, f"ChimeraBodyFor{head}")(ChimeraConfig(**(about | keys)))
        if set(model.state_dict()) == names:
            flat.write(folder, {}, flat.BODY)
            return keys
    (folder / f"{FILE}.py").write_text(SHIM, encoding="utf-8")
    classes = {"AutoConfig": f"{FILE}.ChimeraConfig"}
    for name in ("AutoModel", *(f"AutoModelFor{head}" for head in PIPELINES)):
        classes[name] = f"{FILE}.ChimeraModel"
    return {"model_type": "chimera", "architectures": ["ChimeraModel"], "auto_map": classes}


def _language(causal: bool) -> str:
    return "CausalLM" if causal else "MaskedLM"


def _keys(
    kind: str, heads: Sequence[str], about: dict[str, Any], tokenizer: Tokenizer, *, causal: bool
) -> dict[str, Any]:
    """Keys of config.json of a folder whose classes are named `kind`, and `kind` with a head."""
    return {
        "model_type": "chimera",
        "architectures": [f"{kind}For{heads[-1] if about['outputs'] else heads[0]}"],
        "auto_map": {
            "AutoConfig": "configuration_chimera.ChimeraConfig",
            "AutoModel": f"{FILE}.{kind}Model",
            **{f"AutoModelFor{head}": f"{FILE}.{kind}For{head}" for head in heads},
        },
        "is_decoder": causal,
        "dtype": "float32",
        "pad_token_id": tokenizer.special.pad,
    }


def without_adapters(model: nn.Module) -> dict[str, Tensor]:
    """Tensors by their names in a model without adapters, whose own are left out."""
    layers = adapted(model)
    tensors = {}
    for name, tensor in model.state_dict().items():
        if not name.startswith(tuple(f"{layer}.update." for layer in layers)):
            for layer in layers:
                name = name.replace(f"{layer}.base.", f"{layer}.")
            tensors[name] = tensor
    return tensors


def distinct(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each storage once, and under which name the others are found."""
    first: dict[tuple[Any, ...], str] = {}
    tied: dict[str, str] = {}
    for name, tensor in tensors.items():
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and place in first:
            tied[name] = first[place]
        first.setdefault(place, name)
    kept = {n: t.detach().cpu().contiguous() for n, t in tensors.items() if n not in tied}
    return kept, tied


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
    pipeline = PIPELINES.get(about.get("architectures", [""])[0].partition("For")[2])
    choices = about["chimera"]["choices"]
    data = choices.get("data") or "data"
    base = about["chimera"]["model"].get("name")
    metrics = record["metrics"]
    results = [
        EvalResult(pipeline, data, data, metric_type=name, metric_name=name, metric_value=value)
        for name, value in metrics.items()
        if pipeline and isinstance(value, int | float) and value == value
    ]
    front = ModelCardData(
        library_name="transformers" if pipeline else "chimera",
        tags=["chimera", about["chimera"]["task"]["name"], choices["mixer"]],
        pipeline_tag=pipeline,
        model_name=record["name"],
        base_model=None if base is None or Path(base).exists() else base,
        eval_results=results,
    )
    chosen = record["choices"].items()
    filled = ModelCard.from_template(
        front,
        template_path=str(Path(__file__).with_name("model_card.jinja")),
        about=about,
        record=record,
        sizes=sizes,
        missing=missing,
        base=base,
        data=data,
        pipeline=pipeline,
        choices={g: c for g, c in chosen if c != "none" and g not in LEFT_OUT},
        metrics={k: f"{v:,.4g}" if isinstance(v, float) else v for k, v in metrics.items()},
        beside=beside,
    )
    return f"{filled}\n"
