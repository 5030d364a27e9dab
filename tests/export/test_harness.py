"""lm-evaluation-harness asks an exported decoder; it is not among this package's requirements."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from chimera.paths import ROOT
from tests.export.folders import folder, pieces

lm_eval: Any = pytest.importorskip(
    "lm_eval", reason="lm-evaluation-harness is not installed: pip install 'lm_eval[hf]'"
)


def test_its_accuracy_is_that_of_our_log_likelihoods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lm_eval.tasks import TaskManager

    model = folder(tmp_path / "out", causal=True, mixer="retnet")
    rows = [
        {"text": text, "choices": ["red dog", "old house", "tree"], "answer": number % 3}
        for number, text in enumerate(["the cat sees a", "one", "it runs to my", "under", "a big"])
    ]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    page = (ROOT / "docs/guide/export.md").read_text()
    task = re.findall(r"```yaml\n(.*?)```", page, re.S)[0]
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "next_word.yaml").write_text(task)
    monkeypatch.chdir(tmp_path)
    results = lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": "out", "trust_remote_code": True, "dtype": "float32"},
        tasks=["next_word"],
        task_manager=TaskManager(include_path=str(tmp_path / "tasks")),
        device="cpu",
        batch_size=2,
        bootstrap_iters=0,
    )
    tokenizer, right = pieces(), []
    for row in rows:
        sums = []
        for choice in row["choices"]:
            before, whole = (
                ids.tolist() for ids in tokenizer.encode([row["text"], f"{row['text']} {choice}"])
            )
            ids = torch.tensor([[tokenizer.sep_id, *whole]])
            with torch.no_grad():
                logs: Any = model(ids[:, :-1]).logits[0].log_softmax(-1)
            new = range(len(before), len(whole))
            sums.append(sum(float(logs[i, whole[i]]) for i in new))
        right.append(sums.index(max(sums)) == row["answer"])
    assert results["results"]["next_word"]["acc,none"] == pytest.approx(sum(right) / len(right))
