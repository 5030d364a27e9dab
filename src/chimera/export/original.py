"""Write a run that began with a checkpoint of transformers in that checkpoint's own format.

    python export.py run=<directory> to=<folder> like=<folder of the checkpoint>

The folder has the checkpoint's config.json and tokenizer, and the run's weights under the
checkpoint's names: any program that reads the checkpoint reads it, without code of this package.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chimera.adapter.shared.low_rank import adapted
from chimera.config.from_hf import ASKED, checkpoint_config, configuration
from chimera.data.tokenizer.own import Own
from chimera.dotted import flatten
from chimera.errors import UserError
from chimera.export.folder import finished, treat_adapter
from chimera.export.target import check_target, replacing_folder
from chimera.model.assemble import choose
from chimera.model.to_hf import original
from chimera.rundir.directory import RunDir
from chimera.rundir.tensors import CONFIG, WEIGHTS, read_config, save_tensors, tensors
from chimera.safe_io import write_json
from chimera.train.restore import restore

#: Settings of the model on which its function depends and config.json has no word of ours.
SHAPE = (
    "dim", "depth", "heads", "tie_head", "head_transform", "embedding_scale", "qk_norm", "loops",
    "norm_placement", "embedding_norm",
)  # fmt: skip
#: Files of a tokenizer and of generation, copied where they are there.
BESIDE = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "tokenizer.model", "vocab.json", "merges.txt", "chat_template.jinja", "generation_config.json",
)  # fmt: skip


def export(run: RunDir, to: Path, like: Path, *, trust: bool = False) -> int:
    """Write the run's weights as a checkpoint of transformers; returns their bytes.

    Args:
        run: a finished run of the parts that `init_from=hf:<like>` chooses, in full precision.
        to: a new or empty folder, or that of an earlier export, which is replaced.
        like: folder of the checkpoint.
        trust: see `export.folder.export`.

    Raises:
        UserError: the run is not finished, or has other parts, settings or another tokenizer.
    """
    where = f"like={like}"
    config = run.config()
    finished(run)
    check_target(to)
    if not (like / CONFIG).is_file():
        raise UserError(f"{where} is no folder of a checkpoint: {CONFIG} is missing")
    settings = checkpoint_config(like)
    _same_parts(config, configuration(like), where)
    restored = restore(run, trust=trust)
    if Own(path=str(like)).build([]).sha256 != restored.tokenizer.sha256:
        raise UserError(f"{where} has another tokenizer than run={run.path}")
    model = restored.task.model.eval()
    treat_adapter(model, "merge")
    if left := list(adapted(model)):
        raise UserError(f"{where}: the adapter of {left[0]} cannot be merged exactly")
    weights = original(model, settings, tensors(like), where)
    about = {k: v for k, v in read_config(like).items() if k != "auto_map"}  # names programs
    with replacing_folder(to) as made:
        save_tensors(weights, made / WEIGHTS, {"format": "pt"})
        write_json(made / CONFIG, about)
        for name in BESIDE:
            if (like / name).is_file():
                shutil.copyfile(like / name, made / name)
    return (to / WEIGHTS).stat().st_size


def _same_parts(config: Mapping[str, Any], theirs: Mapping[str, Any], where: str) -> None:
    """Refuse a run whose function config.json of the checkpoint does not describe."""
    if choose(dict(config), adapter=False).quant.quantises:
        raise UserError(
            f"{where}: quant={config['choices']['quant']} rounds weights, which transformers does"
            " not; leave out like="
        )
    ours, other = (
        {group: side["choices"][group] for group in ASKED}
        | flatten({group: side[group] for group in ASKED})
        | {f"model.{key}": side["model"].get(key) for key in SHAPE}
        for side in (config, theirs)
    )
    for key in (*ASKED, *sorted(ours.keys() | other.keys())):
        own, asked = ours.get(key), other.get(key)
        if own != asked:
            raise UserError(f"{where}: this run has {key}={own}, the checkpoint {key}={asked}")
