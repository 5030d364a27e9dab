"""Frozen table of moved classes: path in the first release → path now.

Never remove a line and never change its left side, because the table has three uses:

- `current` rewrites the old paths in `config.yaml` of an older run when the run is read;
- the identity of a run hashes the old paths (`original`), so finished runs keep their names;
- a file from disk may instantiate only classes that this table, `conf/`, `experiments/` or a
  plugin declares (`chimera.config.trusted_config`).

Classes that have never moved are not listed.
"""

from __future__ import annotations

from typing import Any

MOVED = {
    "chimera.callback.adalora.RankBudget": "chimera.callback.part.adalora.RankBudget",
    "chimera.callback.adapter.AdapterLog": "chimera.callback.part.adapter.AdapterLog",
    "chimera.callback.mag.MagSchedule": "chimera.callback.part.liza.MagSchedule",
    "chimera.callback.qdyt.QDyTSchedule": "chimera.callback.part.qdyt.QDyTSchedule",
    "chimera.callback.sora.GateUpdate": "chimera.callback.part.sora.GateUpdate",
    "chimera.data.acceptability.Acceptability": "chimera.data.corpus.acceptability.Acceptability",
    "chimera.data.byte_bpe.ByteBPE": "chimera.data.tokenizer.byte_bpe.ByteBPE",
    "chimera.data.glue.Glue": "chimera.data.corpus.glue.Glue",
    "chimera.data.glue.SpanishGlue": "chimera.data.corpus.glue.SpanishGlue",
    "chimera.data.instruct.Instruct": "chimera.data.corpus.instruct.Instruct",
    "chimera.data.own.Own": "chimera.data.tokenizer.own.Own",
    "chimera.data.pydocs.PyDocs": "chimera.data.corpus.pydocs.PyDocs",
    "chimera.data.sentence_piece.SentencePiece": (
        "chimera.data.tokenizer.sentence_piece.SentencePiece"
    ),
    "chimera.data.text.Text": "chimera.data.corpus.text.Text",
    "chimera.data.wikitext.WikiText2": "chimera.data.corpus.wikitext.WikiText2",
    "chimera.data.word.Words": "chimera.data.tokenizer.word.Words",
    "chimera.data.wordpiece.WordPiece": "chimera.data.tokenizer.wordpiece.WordPiece",
    "chimera.settings.Guard": "chimera.callback.state.guard.NanGuard",
    "chimera.settings.Logger": "chimera.train.loggers.WandbRun",
    "chimera.settings.Model": "chimera.config.settings.Model",
    "chimera.settings.Optim": "chimera.config.settings.Optim",
    "chimera.settings.Scale": "chimera.config.settings.Scale",
    "chimera.settings.Trainer": "chimera.config.settings.Trainer",
    "chimera.task.glue.Judging": "chimera.task.sequence_classification.SequenceClassification",
}
_FIRST = {now: first for first, now in MOVED.items()}


def current(node: Any) -> Any:
    """Return a configuration with each `_target_` replaced by the class's path now."""
    return _renamed(node, MOVED)


def original(node: Any) -> Any:
    """Return a configuration with each `_target_` replaced by its path in the first release."""
    return _renamed(node, _FIRST)


def _renamed(node: Any, table: dict[str, str]) -> Any:
    if isinstance(node, dict):
        return {
            key: table.get(value, value)
            if key == "_target_" and isinstance(value, str)
            else _renamed(value, table)
            for key, value in node.items()
        }
    return [_renamed(value, table) for value in node] if isinstance(node, list) else node
