"""Writing and reading an exported model.

config.json         the run's configuration, how the model's head looks, what is packed
model.safetensors   weights; ternary ones packed by option, 1.6 bits each
adapter/            what of an adapter is not merged, laid out as peft does it
tokenizer/          ours; tokenizer.json and its configuration for AutoTokenizer where there is one
body/config.json    of a Hugging Face body
README.md           the model card
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from hydra.utils import instantiate
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from chimera.adapter.shared import files as adapters
from chimera.adapter.shared.low_rank import Adapted, adapted
from chimera.adapter.shared.merge import merge, prune
from chimera.config.groups import defaults, node
from chimera.config.init_from import causal_of
from chimera.contract import Packable
from chimera.data.tokenizer.base import Tokenizer
from chimera.data.tokenizer.base import load as load_tokenizer
from chimera.errors import UserError
from chimera.export.card import card
from chimera.export.theirs import AUTO, CODE, write_tokenizer
from chimera.model.assemble import build_model, choose
from chimera.model.classifier import Classifier
from chimera.quant.shared.packing import byte_report, packed
from chimera.rundir.class_table import current
from chimera.rundir.directory import RunDir
from chimera.train.restore import restore


class Exported(NamedTuple):
    """A model, in evaluation mode, and its tokenizer."""

    model: nn.Module
    tokenizer: Tokenizer


def export(run: RunDir, to: Path, *, pack: bool = False, adapter: str = "merge") -> dict[str, Any]:
    """Write a finished run as a folder; returns what config.json says of it.

    Args:
        run: the run; of its checkpoints the one that its final test was made with.
        to: a new or empty folder, or one that was exported to before.
        pack: hold ternary weights in 1.6 bits.
        adapter: `merge` it into the weights where that is exact, and keep the rest beside them;
            `keep` all of it beside them; `alone` writes nothing else.

    Raises:
        UserError: the run is not finished, or the folder holds other files, or nothing can be
            packed.
    """
    config, record = run.config(), run.record()
    if not record:
        raise UserError(f"run={run.path} is not finished; only finished runs are exported")
    if to.exists() and any(to.iterdir()) and not (to / "README.md").exists():
        raise UserError(f"to={to} holds other files; name a new or empty folder")
    restored = restore(run)
    task, tokenizer = restored.task, restored.tokenizer
    model = task.model.eval()
    sizes = byte_report(model)["total"]
    said = _adapter(model, adapter)
    if to.exists():
        shutil.rmtree(to)
    to.mkdir(parents=True)
    if adapted(model):
        adapters.save(model, to / "adapter")
    about = _about(config, model, task, tokenizer) | {"packed": pack, "adapter": said}
    if adapter == "alone":
        (to / "README.md").write_text(card(about, record, sizes), encoding="utf-8")
        return about
    if pack:
        if not any(isinstance(module, Packable) for module in model.modules()):
            raise UserError("packed=true: this model has no ternary weights; leave it out")
        model = packed(model)
    weights, about["tied"] = _distinct(_bare(model))
    save_file(weights, to / "model.safetensors", {"format": "pt"})
    about["bytes"] = (to / "model.safetensors").stat().st_size
    body = getattr(getattr(model, "model", None) or _inner(model), "config", None)
    if body is not None:
        body.save_pretrained(to / "body")
    tokenizer.save(to / "tokenizer")
    write_tokenizer(tokenizer, to)
    (to / "config.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    (to / CODE.name).write_text(CODE.text, encoding="utf-8")
    (to / "README.md").write_text(card(about, record, sizes), encoding="utf-8")
    return about


def load(folder: str | Path) -> Exported:
    """The model and the tokenizer of an exported folder.

    Raises:
        UserError: the folder was not written by `export`.
    """
    folder = Path(folder)
    about = read(folder)
    model = build(about, folder)
    if (folder / "adapter").is_dir():
        adapters.load(model, folder / "adapter")
    return Exported(model.eval().requires_grad_(False), load_tokenizer(folder / "tokenizer"))


def read(folder: Path) -> dict[str, Any]:
    """What config.json says."""
    file = folder / "config.json"
    about = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if "chimera" not in about:
        raise UserError(f"{folder} was not written by export.py: it has no config.json of its kind")
    return cast(dict[str, Any], about | {"chimera": current(about["chimera"])})


def build(about: dict[str, Any], folder: Path) -> nn.Module:
    """The model with its weights, without what an adapter keeps beside them."""
    config = about["chimera"]
    if (folder / "body").is_dir():
        config["model"] |= {"name": str(folder / "body"), "pretrained": False}
    model: nn.Module = build_model(
        instantiate(config["model"], _convert_="all"),
        choose(config, adapter=False),
        vocab_size=about["vocab_size"],
        causal=causal_of(config["task"]),
    )
    if about["outputs"]:
        options = {key: config["task"][key] for key in ("pool", "dropout", "hidden")}
        model = Classifier(cast(Any, model).backbone, about["outputs"], **options)
    if about["packed"]:
        model = packed(model)
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict(weights | {k: weights[v] for k, v in about["tied"].items()})
    return model


def _adapter(model: nn.Module, how: str) -> str:
    """Do with an adapter as asked, in place; returns what was done in words."""
    if not adapted(model):
        if how == "alone":
            raise UserError("adapter=alone: this run has no adapter; leave it out")
        return "none"
    ranks = (
        prune(model)
        if any(layer.update.middle() is not None for layer in adapted(model).values())
        else {}
    )
    left = f"pruned to ranks {min(ranks.values())} to {max(ranks.values())}; " if ranks else ""
    return left + (str(merge(model)) if how == "merge" else "kept beside the weights")


def _about(
    config: dict[str, Any], model: nn.Module, task: Any, tokenizer: Tokenizer
) -> dict[str, Any]:
    classes = isinstance(model, Classifier)
    name = defaults()["adapter"]
    plain = {**config, "adapter": node("adapter", name)}
    plain["choices"] = {**config["choices"], "adapter": name}
    labels = list(getattr(task, "labels", ()))
    return {
        "model_type": "chimera",
        "architectures": ["ChimeraModel"],
        "auto_map": AUTO,
        "vocab_size": tokenizer.vocab_size,
        "outputs": (len(labels) or 1) if classes else 0,
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
        "chimera": plain,
    }


def _bare(model: nn.Module) -> dict[str, Tensor]:
    """Tensors by their names without adapters, whose own are left out."""
    own = {f"{name}.update." for name, m in model.named_modules() if isinstance(m, Adapted)}
    base = {
        f"{name}.base.": f"{name}." for name, m in model.named_modules() if isinstance(m, Adapted)
    }
    found = {}
    for name, tensor in model.state_dict().items():
        if not name.startswith(tuple(own)):
            for inside, outside in base.items():
                name = name.replace(inside, outside)
            found[name] = tensor
    return found


def _distinct(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
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


def _inner(model: nn.Module) -> Any:
    return getattr(getattr(model, "backbone", None), "inner", None)


def logits(model: nn.Module, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """What either kind of model answers."""
    with torch.no_grad():
        return cast(Tensor, model(ids, mask).logits)
