"""The lines on rules of the gradient are read off records and their thinned steps."""

from __future__ import annotations

from typing import Any

from benchmarks.qdyt import PRESET

from benchmarks import gradient_rules


def run(ste: str, seed: int, values: tuple[float, float], norms: list[float], **more: Any) -> Any:
    """A record of a rule with these perplexities, and its mean norms."""
    config = {
        "choices": {
            "preset": more.get("preset", PRESET),
            "scale": "medium",
            "norm": "qdyt",
            "ffn": more.get("ffn", "swiglu"),
        },
        "norm": {
            "callbacks": {"qdyt": {"warmup_steps": more.get("warm", 180)}},
            "running_from": more.get("settled"),
        },
        "quant": {"ste": ste},
        "seed": seed,
        "optim": {"lr": more.get("rate", 0.004)},
        "trainer": {"max_steps": 1800, "gradient_clip_val": 1.0},
    }
    metrics = {"val/perplexity": values[0]}
    other = {"token_mean": {"val/perplexity": values[1]}}
    return config, {"metrics": metrics, "other_rules": other}, norms


def test_rules_are_compared_at_their_rates_on_the_seeds_of_all() -> None:
    found = [
        run("standard", 0, (110.0, 100.0), [0.5, 1.0, 1.0, 1.0]),
        run("standard", 1, (112.0, 104.0), [0.5, 0.9, 1.0, 1.0]),
        run("lsq", 0, (84.0, 76.0), [1.0, 1.0]),
        run("lsq", 1, (85.0, 78.0), [1.0, 1.0]),
        run("lsq", 2, (1.0, 1.0), [0.0]),  # the other has no such seed
        run("lsq", 0, (99.0, 90.0), [0.2, 1.0], rate=0.002),  # not its own rate
        run("lsq", 100, (1.0, 1.0), [1.0]),  # chose a rate, as the next
        run("standard", 100, (1.0, 1.0), [1.0]),
        run("lsq", 1, (1.0, 1.0), [1.0], ffn="relu2"),
        run("lsq", 1, (1.0, 1.0), [1.0], preset="bitnet_qdyt_large"),
        run("lsq", 1, (1.0, 1.0), [1.0], warm=2000),
        run("lsq", 1, (1.0, 1.0), [1.0], settled=0.8),
    ]
    _, _, *lines = gradient_rules.page(found).splitlines()
    lsq, standard = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    assert lsq == ["`lsq`", "0.004", "2", "84.50 ± 0.71", "", "77.0 ± 1.4", "", "100%"]
    assert standard[:4] == ["`standard`", "0.004", "2", "111.0 ± 1.4"]
    assert standard[4].startswith("+26.50 ± 0.71 (+20.1")
    assert standard[6].startswith("+25.0 ± 1.4 (+12.3")
    assert standard[7] == "50% to 75%"
    assert gradient_rules.page([]) == "No records yet.\n"
