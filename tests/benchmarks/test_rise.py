"""Perplexity at longer lengths stands beside that at the trained one, seed by seed."""

from __future__ import annotations

from benchmarks.stored import Pair

from benchmarks import rise


def run(row: str, seed: int, *values: float, lr: float = rise.RATE, name: str = rise.TABLE) -> Pair:
    """Configuration and run.json of a run with these perplexities."""
    config = {
        "table": {"name": name, "row": row},
        "choices": {"scale": rise.SCALE},
        "optim": {"lr": lr},
        "data": {"seq_len": 128},
        "task": {"longer": [2, 4, 8]},
        "seed": seed,
    }
    ends = ("", "_2x", "_4x", "_8x")
    metrics = {f"val/perplexity{end}": value for end, value in zip(ends, values, strict=True)}
    return config, {"metrics": {**metrics, "val/unigram_perplexity": 600.0}}


def test_a_rise_is_a_quotient_of_one_seed_s_perplexities() -> None:
    pairs = [
        run("standard", 0, 200, 210, 220, 240),
        run("standard", 1, 100, 105, 110, 121),
        run("mqa", 0, 200, 200, 200, 202),
        run("mqa", 1, 180, 180, 180, 182),
        run("standard_alibi", 0, 200, 150, 120, 100),
        run("standard_alibi", 1, 200, 150, 120, 101),
        run("gqa", 0, 200, 200, 200, 400),
        run("standard", 2, 100, 100, 100, 900, lr=1e-3),
        run("standard", 3, 100, 100, 100, 900, name="saidl/attention"),
    ]
    head, _, *lines = rise.page(pairs).split("\n\n")[0].splitlines()
    assert "| 128 tokens | 256 tokens | 512 tokens | 1024 tokens |" in head
    rows = [line.split("|")[1].strip() for line in lines]
    assert rows == ["`standard_alibi`", "`mqa`", "`standard`"]  # one seed of gqa shows nothing
    assert "150 ± 71" in lines[2]
    assert "1.205 × (1." in lines[2]
    said = rise.page(pairs)
    assert "rises by 15 to 17 %" in said
    assert "Of its 2 variants 1 rise here by less, with the whole interval, and 0 by more" in said
    assert "(2 seeds). A unigram model has 600.0 at 128 tokens." in said


def test_without_two_seeds_nothing_is_said() -> None:
    assert rise.page([]) == "No runs yet.\n"
    assert rise.page([run("mqa", 0, 200, 200, 200, 202)]) == "No runs yet.\n"
