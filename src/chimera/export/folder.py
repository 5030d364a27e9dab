"""Write a finished run as a folder.

config.json         the run's configuration, how the model's head looks, what is packed
model.safetensors   weights; ternary ones packed by option, 1.6 bits each
adapter/            what of an adapter is not merged, laid out as peft does it
tokenizer/          ours; tokenizer.json and its configuration for AutoTokenizer where there is one
body/config.json    of a Hugging Face body
*.py                code for transformers
README.md           the model card
export.json         hashes of the files
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from torch import Tensor, nn

from chimera.adapter.shared import files as adapters
from chimera.adapter.shared.low_rank import adapted
from chimera.adapter.shared.merge import merge, prune
from chimera.config.groups import defaults, node
from chimera.config.init_from import causal_of
from chimera.contract import Packable
from chimera.data.tokenizer.base import Tokenizer
from chimera.errors import UserError
from chimera.export.hf import files as hf
from chimera.export.hf import tokenizer as hf_tokenizer
from chimera.export.model_card import card
from chimera.export.target import check_target, replacing_folder
from chimera.model.backbone import Trunk
from chimera.model.classifier import Classifier
from chimera.model.restore import save_body
from chimera.quant.shared.packing import byte_report, packed
from chimera.rundir.directory import RunDir
from chimera.rundir.tensors import save_tensors
from chimera.safe_io import write_atomic, write_json
from chimera.train.restore import restore

#: Builder of the models whose code an exported folder holds.
BUILDER = "chimera.model.assemble.from_parts"


def export(
    run: RunDir, to: Path, *, pack: bool = False, adapter: str = "merge", trust: bool = False
) -> dict[str, Any]:
    """Write a finished run as a folder; returns the contents of its config.json.

    Args:
        run: the run; of its checkpoints the one that its final test was made with.
        to: a new or empty folder, or that of an earlier export, which is replaced.
        pack: hold ternary weights in 1.6 bits.
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
    model: Any = restored.task.model.eval()
    sizes = byte_report(model)["total"]
    treatment = treat_adapter(model, adapter)
    if pack and not any(isinstance(module, Packable) for module in model.modules()):
        raise UserError("packed=true: this model has no ternary weights; leave it out")
    about = _about(config, model, restored.task, restored.tokenizer)
    about |= {"packed": pack, "adapter": treatment}
    missing = None
    with replacing_folder(to) as made:
        if adapted(model):
            adapters.save(model, made / "adapter")
        if adapter != "alone":
            model = packed(model) if pack else model
            _write_weights(made, about, model)
            opening = restored.tokenizer.opening(packed=restored.task.plain_text)
            missing = _write_code(made, about, model, restored.tokenizer, opening)
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
    labels = list(getattr(task, "labels", ()))
    about = {
        "vocab_size": tokenizer.vocab_size,
        "outputs": (len(labels) or 1) if isinstance(model, Classifier) else 0,
        "chimera": {**config, "adapter": adapter, "choices": choices},
    }
    if labels:  # transformers gives other models two labels
        about["id2label"] = {str(i): label for i, label in enumerate(labels)}
        about["label2id"] = {label: i for i, label in enumerate(labels)}
    return about


def _write_weights(to: Path, about: dict[str, Any], model: nn.Module) -> None:
    """Write model.safetensors and its keys of config.json, and the configuration of a body."""
    weights, about["tied"] = distinct(without_adapters(model))
    file = to / "model.safetensors"
    save_tensors(weights, file, {"format": "pt"})
    about["bytes"] = file.stat().st_size
    save_body(model, to)


def _write_code(
    to: Path, about: dict[str, Any], model: Any, tokenizer: Tokenizer, opening: Sequence[int]
) -> str | None:
    """Write code, tokenizer and their keys of config.json; returns why there is no fast tokenizer.

    Args:
        to: the folder, with its weights.
        about: contents of config.json, added to.
        model: as it was written.
        tokenizer: of the model.
        opening: ids before a text, if the model is a decoder.
    """
    config = about["chimera"]
    settings = instantiate(config["model"])
    tokenizer.save(to / "tokenizer")
    of_body = not isinstance(model.backbone, Trunk) or settings.builder != BUILDER
    causal = bool(getattr(model.backbone, "causal", causal_of(config["task"])))
    if of_body:
        names = without_adapters(model).keys()
        about |= hf.write_body(to, about, set(names), tokenizer, causal=causal)
    else:
        about |= hf.write(to, about, asdict(settings), tokenizer, causal=causal, opening=opening)
    decodes = causal and not about["outputs"]
    return hf_tokenizer.write(
        tokenizer, to, opening=opening if decodes else None, max_len=settings.max_len
    )


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
