"""What a run prints at its start about weight decay, draws and adapters, and at its end."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path

import pytest
import rich

from chimera.config.settings import Optim
from chimera.contract_tests import zoo
from chimera.errors import UserError
from chimera.optim.optimizer import groups
from chimera.train.console import report, show_draws, show_frozen, show_parameters
from chimera.train.model_summary import ternary_by_component


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    said = io.StringIO()
    monkeypatch.setattr(rich.get_console(), "file", said)
    monkeypatch.setattr(rich.get_console(), "width", 120, raising=False)
    return said


def test_dropout_that_torch_draws_is_named(printed: io.StringIO) -> None:
    dropping = replace(zoo.TINY, dropout=0.1)
    show_draws(zoo.build(zoo.TINY, {"mixer": "attention"}))
    show_draws(zoo.build(dropping, {"mixer": "mamba"}))
    assert not printed.getvalue()
    show_draws(zoo.build(dropping, {"mixer": "attention"}))
    said = printed.getvalue().splitlines()
    assert len(said) == 1
    assert said[0].startswith("dropout inside scaled_dot_product_attention is drawn by micro-batch")


def test_the_table_has_a_row_for_what_decay_leaves_alone(printed: io.StringIO) -> None:
    model = zoo.build(zoo.TINY, {"mixer": "mamba", "norm": "qdyt"})
    for module in (model.backbone.embedding, model.backbone.scale):
        module.requires_grad_(False)
    show_parameters("a run", groups(model, Optim(lr=1e-3, weight_decay=0.02)), model)
    rows = {
        row[1:-1].split("│")[0].strip(): [cell.strip() for cell in row[1:-1].split("│")[1:]]
        for row in printed.getvalue().splitlines()
        if row.startswith("│")
    }
    assert rows["norm: alpha"][-1] == rows["mamba: dt_bias, A_log, D"][-1] == "0"
    assert rows["norm"][-1] == rows["mamba"][-1] == "0.02"
    counts = [
        int(rows[name][0].replace(",", "")) for name in rows if name not in ("total", "trained")
    ]
    assert sum(counts) == int(rows["total"][0].replace(",", ""))


def test_the_ternary_share_shows_what_a_quantiser_changes(printed: io.StringIO) -> None:
    assert ternary_by_component(zoo.build(zoo.TINY, {})) == {}
    model = zoo.build(zoo.TINY, {"quant": "bitnet158"})
    shares = ternary_by_component(model)
    assert shares == pytest.approx(
        {"embedding": 0.0, "norm": 0.0, "attention": 1.0, "ffn": 1.0, "head": 0.0}
    )
    show_parameters("a run", groups(model, Optim(lr=1e-3)), model)
    assert "ternary: embedding 0%" in printed.getvalue()
    assert "attention 100%" in printed.getvalue()
    table = ternary_by_component(zoo.build(zoo.TINY, {"quant": "hbit", "mixer": "mlstm"}))
    assert 0 < table["mlstm"] < 1  # the 4 × 4 blocks of W_q, W_k, W_v stay in full precision


@pytest.mark.parametrize(
    ("ours", "says"), [(50.0, "4.00 times lower"), (800.0, "4.00 times higher")]
)
def test_the_end_compares_with_the_unigram(printed: io.StringIO, ours: float, says: str) -> None:
    metrics = {"val/unigram_perplexity": 200.0, "val/perplexity": ours}
    metrics |= {"test/perplexity": ours, "test/accuracy": 0.1}
    record = {"metrics": metrics, "skipped": {"scaler": 0}}
    record |= {"tokens_per_second": math.nan, "peak_memory_gb": 1.0, "wall_seconds": 3.0}
    report(record, Path("run"))
    said = " ".join(printed.getvalue().split())
    assert says in said
    assert "nan" not in said  # a run of one step has no speed
    report({**record, "tokens_per_second": 1234.0}, Path("run"))
    assert "1,234 tokens/s, peak memory" in " ".join(printed.getvalue().split())


def test_an_adapter_beside_random_weights_is_warned_of(printed: io.StringIO) -> None:
    config = {"choices": {"adapter": "lora"}, "init_from": "runs/a", "model": {"dim": 32}}
    show_frozen(config)
    show_frozen({**config, "init_from": None, "model": {"pretrained": True}})
    show_frozen({**config, "init_from": None, "choices": {"adapter": "none"}})
    assert not printed.getvalue()
    show_frozen({**config, "init_from": None})
    assert "adapter=lora freezes the model's random weights" in printed.getvalue()


@pytest.mark.parametrize("key", ["metrics", "skipped", "wall_seconds"])
def test_a_record_that_lacks_a_fact_is_refused_in_one_line(key: str, tmp_path: Path) -> None:
    whole = {"metrics": {"val/loss": 1.0}, "skipped": {"not_finite": 0, "scaler": 0}}
    whole |= {"tokens_per_second": None, "peak_memory_gb": 1.0, "wall_seconds": 2}
    report(whole, tmp_path)
    for broken in ({**whole, key: "x"}, {k: v for k, v in whole.items() if k != key}):
        with pytest.raises(UserError, match=r"run.json is no record of a run .*; restore it"):
            report(broken, tmp_path)
