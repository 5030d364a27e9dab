"""Tasks of GLUE and Spanish counterparts: files, columns, labels, metrics (SPEC D2).

GLUE: arXiv 1804.07461. XNLI: arXiv 1809.05053. PAWS-X: arXiv 1908.11828. STS-B in Spanish is the
machine translation `PhilipMay/stsb_multi_mt`. The parts are `train`, `valid` and `test`; MNLI also
has `valid_mismatched`, `test_mismatched` and the diagnostic set `ax`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Name = Literal["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"]
SpanishName = Literal["xnli_es", "pawsx_es", "stsb_es"]
Metric = Literal["accuracy", "f1", "mcc", "pearson", "spearman"]

_GLUE = "nyu-mll/glue"
_YES_NO = ("0", "1")
_ENTAILS = ("entailment", "not_entailment")
_NLI = ("entailment", "neutral", "contradiction")
_CLASSES: tuple[Metric, ...] = ("accuracy",)
_SCORES: tuple[Metric, ...] = ("pearson", "spearman")
#: Candidates for the local file of a part; the first that exists is read. If a folder holds only a
#: sample of the official train part, its held-out rows replace the official dev part; the log names
#: the file.
_FILES = {
    "train": ("train.tsv", "train_9k.tsv"),
    "valid": ("dev.tsv", "train_holdout_1k.tsv"),
    "test": ("test.tsv",),
}
_SPLITS = {"train": "train", "valid": "validation", "test": "test"}


@dataclass(frozen=True)
class Spec:
    """One task.

    Args:
        folder: name of the folder of its local files.
        hub: data set and configuration on the hub.
        first, second, label: possible names of these columns, on the hub or in a file; `second` is
            empty for a task of single texts.
        labels: names in files and submissions, in the order of their numbers; empty for a score,
            which is predicted by regression.
        metrics: names of the official metrics; their mean is the task's score.
        files: part to its possible file names.
        splits: part to its split on the hub.
        columns: names of the columns of files without a header row.
        submission: part to the name of its file in GLUE's submission.
        broken_rows: skip rows with too few fields, which are known to occur.
    """

    folder: str
    hub: tuple[str, str]
    first: tuple[str, ...]
    second: tuple[str, ...]
    label: tuple[str, ...] = ("label",)
    labels: tuple[str, ...] = _YES_NO
    metrics: tuple[Metric, ...] = _CLASSES
    files: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _FILES)
    splits: Mapping[str, str] = field(default_factory=lambda: _SPLITS)
    columns: tuple[str, ...] = ()
    submission: Mapping[str, str] = field(default_factory=dict)
    broken_rows: bool = False


#: Range of the scores of STS-B in both languages.
LOWEST = 0.0
HIGHEST = 5.0

SPECS: dict[str, Spec] = {
    "cola": Spec(
        "CoLA",
        (_GLUE, "cola"),
        ("sentence",),
        (),
        metrics=("mcc",),
        columns=("source", "label", "mark", "sentence"),
        submission={"test": "CoLA"},
    ),
    "sst2": Spec("SST-2", (_GLUE, "sst2"), ("sentence",), (), submission={"test": "SST-2"}),
    "mrpc": Spec(
        "MRPC",
        (_GLUE, "mrpc"),
        ("sentence1", "#1 String"),
        ("sentence2", "#2 String"),
        ("label", "Quality"),
        metrics=("f1", "accuracy"),
        submission={"test": "MRPC"},
    ),
    "stsb": Spec(
        "STS-B",
        (_GLUE, "stsb"),
        ("sentence1",),
        ("sentence2",),
        ("label", "score"),
        labels=(),
        metrics=_SCORES,
        # The test file of the original benchmark has scores; GLUE's has the same rows without them.
        files={**_FILES, "test": ("sts-test-gold.tsv", "test.tsv")},
        columns=("genre", "file", "year", "number", "score", "sentence1", "sentence2"),
        submission={"test": "STS-B"},
    ),
    "qqp": Spec(
        "QQP",
        (_GLUE, "qqp"),
        ("question1",),
        ("question2",),
        ("label", "is_duplicate"),
        metrics=("f1", "accuracy"),
        submission={"test": "QQP"},
        broken_rows=True,
    ),
    "mnli": Spec(
        "MNLI",
        (_GLUE, "mnli"),
        ("sentence1", "premise"),
        ("sentence2", "hypothesis"),
        ("gold_label", "label"),
        labels=_NLI,
        files={
            "train": _FILES["train"],
            "valid": ("dev_matched.tsv", "dev.tsv", "train_holdout_1k.tsv"),
            "valid_mismatched": ("dev_mismatched.tsv",),
            "test": ("test_matched.tsv",),
            "test_mismatched": ("test_mismatched.tsv",),
            "ax": ("diagnostic.tsv", "../AX/diagnostic.tsv", "../diagnostic/diagnostic.tsv"),
        },
        splits={
            "train": "train",
            "valid": "validation_matched",
            "valid_mismatched": "validation_mismatched",
            "test": "test_matched",
            "test_mismatched": "test_mismatched",
        },
        submission={"test": "MNLI-m", "test_mismatched": "MNLI-mm", "ax": "AX"},
    ),
    "qnli": Spec(
        "QNLI",
        (_GLUE, "qnli"),
        ("question",),
        ("sentence",),
        labels=_ENTAILS,
        submission={"test": "QNLI"},
    ),
    "rte": Spec(
        "RTE",
        (_GLUE, "rte"),
        ("sentence1",),
        ("sentence2",),
        labels=_ENTAILS,
        submission={"test": "RTE"},
    ),
    "wnli": Spec(
        "WNLI", (_GLUE, "wnli"), ("sentence1",), ("sentence2",), submission={"test": "WNLI"}
    ),
    "xnli_es": Spec(
        "XNLI",
        ("facebook/xnli", "es"),
        ("premise", "sentence1"),
        ("hypothesis", "sentence2"),
        ("label", "gold_label"),
        labels=_NLI,
        files={**_FILES, "train": ("train.tsv", "../esXNLI/esxnli.tsv")},
    ),
    "pawsx_es": Spec(
        "PAWS-X",
        ("google-research-datasets/paws-x", "es"),
        ("sentence1",),
        ("sentence2",),
        files={**_FILES, "test": ("test.tsv", "test_labels_from_de_zh.tsv")},
    ),
    "stsb_es": Spec(
        "STS-B",
        ("PhilipMay/stsb_multi_mt", "es"),
        ("sentence1",),
        ("sentence2",),
        ("similarity_score", "score"),
        labels=(),
        metrics=_SCORES,
        files={"train": ("train.csv",), "valid": ("dev.csv",), "test": ("test.csv",)},
        splits={"train": "train", "valid": "dev", "test": "test"},
        columns=("sentence1", "sentence2", "score"),
    ),
}
