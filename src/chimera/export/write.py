"""Write a finished run as a folder, whose files `chimera.export.folder` lists and reads."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from hydra.utils import instantiate
from torch import nn

from chimera.adapter.shared import files as adapters
from chimera.adapter.shared.low_rank import adapted
from chimera.adapter.shared.merge import merge, prune
from chimera.config.groups import defaults, node
from chimera.contract import Packable
from chimera.data.tokenizer.base import Tokenizer
from chimera.errors import UserError
from chimera.export.folder.card import card
from chimera.export.folder.weights import bare, distinct
from chimera.export.hf import files as hf
from chimera.export.hf import tokenizer as hf_tokenizer
from chimera.export.target import check_target
from chimera.model.backbone import Trunk
from chimera.model.classifier import Classifier
from chimera.model.restore import save_body
from chimera.quant.shared.packing import byte_report, packed
from chimera.rundir.directory import RunDir
from chimera.rundir.safe_io import make_folder
from chimera.rundir.tensors import save_tensors
from chimera.train.restore import restore

#: Builder of the models whose code an exported folder holds.
BUILDER = "chimera.model.assemble.from_parts"


def export(
    run: RunDir, to: Path, *, pack: bool = False, adapter: str = "merge", trust: bool = False
) -> dict[str, Any]:
    """Write a finished run as a folder; returns the contents of its config.json.

    Args:
        run: the run; of its checkpoints the one that its final test was made with.
        to: a new or empty folder, or one that was exported to before.
        pack: hold ternary weights in 1.6 bits.
        adapter: `merge` it into the weights where that is exact, and keep the rest beside them;
            `keep` all of it beside them; `alone` writes nothing else.
        trust: load the Hugging Face model that the run's configuration names, if it has to be.

    Raises:
        UserError: the run is not finished, or the folder holds other files, or nothing can be
            packed.
    """
    config = run.config()
    record = run.record()
    if not record:
        raise UserError(f"run={run.path} is not finished; only finished runs are exported")
    check_target(to)
    restored = restore(run, trust=trust)
    task = restored.task
    tokenizer = restored.tokenizer
    model = task.model.eval()
    sizes = byte_report(model)["total"]
    treatment = treat_adapter(model, adapter)
    if pack and not any(isinstance(module, Packable) for module in model.modules()):
        raise UserError("packed=true: this model has no ternary weights; leave it out")
    if to.exists():
        shutil.rmtree(to)
    make_folder(to, of=to, key="to")
    if adapted(model):
        adapters.save(model, to / "adapter")
    about = _about(config, model, task, tokenizer) | {"packed": pack, "adapter": treatment}
    if adapter == "alone":
        (to / "README.md").write_text(card(about, record, sizes), encoding="utf-8")
        return about
    if pack:
        model = packed(model)
    weights, about["tied"] = distinct(bare(model))
    save_tensors(weights, to / "model.safetensors", {"format": "pt"})
    about["bytes"] = (to / "model.safetensors").stat().st_size
    save_body(model, to)
    tokenizer.save(to / "tokenizer")
    settings = instantiate(config["model"])
    max_len = settings.max_len
    if isinstance(cast(Any, task.model).backbone, Trunk) and settings.builder == BUILDER:
        causal = bool(task.causal)
        about |= hf.write(to, about, asdict(settings), tokenizer, causal=causal)
        decodes = causal and not about["outputs"]
        of_body = False
    else:
        causal = bool(cast(Any, task.model).backbone.causal)
        of_body = True
        names = set(weights) | set(about["tied"])
        about |= hf.write_body(to, about, names, tokenizer, causal=causal) or hf.shim(to)
        decodes = causal and not about["outputs"]
    missing = hf_tokenizer.write(tokenizer, to, decodes=decodes, of_body=of_body, max_len=max_len)
    (to / "config.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    page = card(about, record, sizes, missing, beside=(to / "adapter").is_dir())
    (to / "README.md").write_text(page, encoding="utf-8")
    return about


def treat_adapter(model: nn.Module, how: str) -> str:
    """Merge an adapter in place or leave it; returns which, in words."""
    if not adapted(model):
        if how == "alone":
            raise UserError("adapter=alone: this run has no adapter; leave it out")
        return "none"
    ranks = (
        prune(model)
        if any(layer.update.diagonal() is not None for layer in adapted(model).values())
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
    about = {
        "vocab_size": tokenizer.vocab_size,
        "outputs": (len(labels) or 1) if classes else 0,
        "chimera": plain,
    }
    if labels:  # transformers gives other models two labels
        about["id2label"] = {str(i): label for i, label in enumerate(labels)}
        about["label2id"] = {label: i for i, label in enumerate(labels)}
    return about
