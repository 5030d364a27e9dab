"""Distillation: hidden states and losses, identity of the teacher, a missing teacher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from chimera.cli.train import main as train
from chimera.config.compose import compose, plain
from chimera.config.start_model import teacher_overrides
from chimera.contract_tests import zoo
from chimera.errors import UserError
from chimera.model.hidden_states import hidden_states
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import identity
from chimera.task.mlm import Teacher, hidden_loss, logit_loss

STUDENT = "+bitnet_qdyt/main=ternary_bert"
TEACHER = "+bitnet_qdyt/main=bert_base"


def config(*words: str) -> dict[str, Any]:
    return plain(compose([*words, "scale=smoke"]))


def test_hidden_states_are_the_embeddings_and_each_blocks_output() -> None:
    model = zoo.model()
    ids = zoo.tokens()
    with hidden_states(model.backbone) as states:
        out = model.backbone(ids)
    assert len(states) == 1 + len(model.backbone.blocks)
    torch.testing.assert_close(model.backbone.norm(states[-1]), out.y)
    model.backbone(ids)
    assert len(states) == 1 + len(model.backbone.blocks)  # the hooks are gone


def test_losses_by_hand() -> None:
    ours, theirs = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    by_hand = sum(((ours[b, t] - theirs[b, t]) ** 2).mean() for b, t in ((0, 0), (0, 1), (1, 0)))
    torch.testing.assert_close(hidden_loss([ours, ours], [theirs, ours], mask), by_hand / 3)
    torch.testing.assert_close(
        hidden_loss([ours], [theirs], None), torch.nn.functional.mse_loss(ours, theirs)
    )
    s, t = torch.randn(5, 7), torch.randn(5, 7)
    kl = torch.nn.functional.kl_div(
        (s / 2).log_softmax(-1), (t / 2).log_softmax(-1), log_target=True, reduction="batchmean"
    )
    entropy = -((t / 2).softmax(-1) * (t / 2).log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(logit_loss(s, t, 2.0), 4 * (kl + entropy))


def test_teacher_run_is_the_teachers_identity_wherever_its_directory_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = config(STUDENT)
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path))
    assert identity(config(STUDENT)) == identity(one)
    assert one["task"]["teacher_run"] == identity(config(TEACHER))
    assert config(STUDENT, "seed=1")["task"]["teacher_run"] == identity(config(TEACHER, "seed=1"))
    with pytest.raises(UserError, match=r"task.teacher_run is no setting: it is computed from"):
        config(STUDENT, "task.teacher_run=deadbeef")
    table = config("+bitnet_qdyt=main", STUDENT, "run_dir=x", "name=y", "task.distil_weight=0.5")
    assert table["task"]["teacher_run"] == one["task"]["teacher_run"]


def test_overrides_of_the_teacher() -> None:
    mine = [STUDENT, "+bitnet_qdyt=main", "scale=small", "seed=2", "run_dir=x", "workers=2"]
    found = teacher_overrides("row:bitnet_qdyt/main/bert_base", mine)
    assert found[0] == TEACHER
    assert {"scale=small", "seed=2"} <= set(found)
    assert not [word for word in found if word.startswith(("run_dir", STUDENT, "+bitnet_qdyt="))]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Overrides for an invented corpus and a run of seconds."""
    folder = tmp_path_factory.mktemp("text")
    lines = [f"The {a} sees the {b} near house number {i}.\n" for i in range(40) for a, b in (
        ("cat", "dog"), ("bird", "child"), ("dog", "bird"))]  # fmt: skip
    (folder / "text.txt").write_text("\n".join(lines))
    words = ["scale=smoke", "logger=none", "data=text", "trainer.max_steps=2", "model.dim=32"]
    words += ["trainer.progress=none", f"data.path={folder}/text.txt"]
    return [*words, f"data.cache_dir={folder}/cache"]


def test_a_student_starts_from_its_trained_teacher(
    text: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path))
    assert train([STUDENT, *text]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert f"train it first: python train.py {TEACHER} scale=smoke" in line
    assert list(tmp_path.iterdir()) == []

    assert train([TEACHER, *text]) == 0
    assert train([STUDENT, *text]) == 0
    teacher, student = (RunDir.of(plain(compose([w, *text]))) for w in (TEACHER, STUDENT))
    assert student.record()["choices"]["quant"] == "ternary_weight"

    def saved(directory: RunDir) -> dict[str, Any]:
        loaded = torch.load(directory.checkpoints / "last.ckpt", weights_only=True)
        assert isinstance(loaded, dict)
        return loaded

    weights = saved(student)["state_dict"]
    assert not [key for key in weights if "teacher" in key]
    assert set(saved(teacher)["state_dict"]) <= set(weights)

    fresh = zoo_of(student)
    held = Teacher(teacher, fresh, teacher.record()["tokenizer"]["vocab_size"])
    assert not held.model.training
    assert not any(p.requires_grad for p in held.model.parameters())
    held.initialise(fresh)
    for name, parameter in fresh.named_parameters():
        torch.testing.assert_close(
            parameter.detach(), saved(teacher)["state_dict"][f"model.{name}"], rtol=0, atol=0
        )
    # The student is two small steps away from the teacher's weights.
    moved = max(
        float((weights[f"model.{n}"] - p.detach()).abs().max()) for n, p in fresh.named_parameters()
    )
    assert 0 < moved < 0.05

    (teacher.path / "run.json").write_text('{"tokenizer": 3}')
    with pytest.raises(UserError, match=r"run\.json has no tokenizer"):
        Teacher(teacher, fresh, 7)


def zoo_of(directory: RunDir) -> Any:
    """An untrained model of the run's configuration."""
    from chimera.train.build import build_task

    return build_task(directory.config(), directory.record()["tokenizer"]["vocab_size"]).model
