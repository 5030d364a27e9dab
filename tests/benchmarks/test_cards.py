"""Cards and choose.md from invented runs: rates, scores, limits, ranks beside published ones."""

from __future__ import annotations

import math
import re
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from benchmarks.card import choose, page, radar
from benchmarks.card.failures import failures
from benchmarks.card.published import MEAN, Source, by_chance, disagreements, ranks, sources
from benchmarks.card.records import Profiles, Run, above, gather
from scipy.stats import sem, spearmanr, t

from chimera.config.groups import groups
from chimera.paths import ROOT

CHANCE = 0.2
FACTS = page.Facts({}, {}, "Test CPU")


def run(
    mixer: str, task: str, seed: int, accuracy: float, *, rate: float = 3e-3, **more: Any
) -> Run:
    """A run whose validation accuracy is its test accuracy, unless `metrics` say so."""
    metrics = {"test/accuracy": accuracy, "val/accuracy": accuracy}
    metrics |= {"val/chance_accuracy": CHANCE, "val/majority_accuracy": 0.25}
    record = {
        "metrics": {**metrics, **more.pop("metrics", {})},
        "choices": {"position": "none"},
        "steps": more.pop("steps", 800),
        "wall_seconds": 36.0,
    }
    setting = (("data.seq_len", str(more.pop("length", 64))),)
    stage = "rate" if seed == 0 else "report"
    return Run(mixer, task, seed, stage, rate, record, setting, 800, "abcdef12", "Test CPU")


def runs(**scores: dict[str, list[float]]) -> list[Run]:
    """Three rates on seed 0, of which 0.003 is best, and a reporting run for each score."""
    found = []
    for mixer, by_task in scores.items():
        for task, values in by_task.items():
            for rate, share in ((1e-3, 0.8), (3e-3, 1.0), (1e-2, 0.5)):
                found.append(run(mixer, task, 0, share * values[0], rate=rate))
            found += [run(mixer, task, seed, v) for seed, v in enumerate(values, 1)]
    return found


ATTENTION = {"mqar": [0.98, 0.97, 0.99, 0.98], "copy": [0.9, 0.91, 0.92, 0.93]}
DELTA = {"mqar": [0.96, 0.98, 0.97, 0.99], "copy": [0.5, 0.52, 0.51, 0.49]}
RETNET = {"mqar": [0.3, 0.31, 0.29, 0.3], "copy": [0.9, 0.92, 0.91, 0.94]}


@pytest.fixture
def profiles() -> Profiles:
    return gather(runs(attention=ATTENTION, delta=DELTA, retnet=RETNET))


def test_the_rate_is_chosen_on_its_own_seed_by_validation() -> None:
    """The test accuracy of the choosing runs, and the reporting runs at other rates, count not."""
    best = run("delta", "mqar", 0, 0.1, metrics={"val/accuracy": 0.9}, rate=1e-2)
    other = run("delta", "mqar", 0, 0.99, metrics={"val/accuracy": 0.8}, rate=1e-3)
    reports = [run("delta", "mqar", 1, 0.7, rate=1e-2), run("delta", "mqar", 2, 1.0, rate=1e-3)]
    result = gather([best, other, *reports]).by_mixer["delta"].results["mqar"]
    assert result.rate == 1e-2
    assert result.accuracies == {1: 0.7}
    assert result.scores == {1: pytest.approx((0.7 - CHANCE) / (1 - CHANCE))}
    assert result.rates == {1e-3: 0.8, 1e-2: 0.9}
    fewer = run("delta", "mqar", 0, 0.9, rate=1e-3, steps=400)  # a tie: the one that was faster
    assert gather([best, fewer, *reports]).by_mixer["delta"].results["mqar"].rate == 1e-3


def test_a_task_names_the_mixers_of_which_a_run_solved_it_with_their_number() -> None:
    """Runs that ended before the last step are counted, those that chose the rate are not."""
    solved = [run("delta", "mqar", seed, 0.99, steps=400) for seed in (0, 1, 2)]
    failed = [run("delta", "mqar", seed, 0.5) for seed in (3, 4)]
    other = [run("attention", "mqar", seed, 0.6) for seed in range(5)]
    text = choose.page(gather([*solved, *failed, *other]), [], FACTS)
    [row] = [line for line in text.splitlines() if line.startswith("| mqar")]
    assert row.split("|")[-2].strip() == "[`delta`](cards/mixer-delta.md) 2 of 4"


def test_runs_of_another_difficulty_are_left_out_and_named() -> None:
    own = runs(attention=ATTENTION, delta=DELTA)
    other = [run("retnet", "mqar", seed, 1.0, length=32) for seed in range(3)]
    found = gather([*own, *other])
    assert list(found.by_mixer) == ["attention", "delta"]
    assert found.left_out == ("mqar of retnet: other data.seq_len than most records",)


def test_limits_are_read_off_the_numbers(profiles: Profiles) -> None:
    lengths = {"test/accuracy_1x": 1.0, "test/accuracy_2x": 0.95, "test/accuracy_16x": 0.4}
    odd = [
        *(run("mlstm", "parity", s, 0.7, metrics=lengths) for s in (1, 2)),
        *(run("mlstm", "s5", s, a) for s, a in ((1, 0.3), (2, 0.95))),
        *(run("mlstm", "regbench", s, 0.24) for s in (1, 2)),
        *(run("mlstm", "copy", s, 0.26) for s in (1, 2)),
        *(run("mlstm", "mqar", s, 0.9) for s in (1, 2)),
        *(run("mlstm", "mqar", 0, 0.9 if r == 3e-3 else 0.2, rate=r) for r in (1e-3, 3e-3, 1e-2)),
    ]
    profile = gather(odd).by_mixer["mlstm"]
    said = {re.match(r"`(\w+)`", line)[1]: line for line in failures(profile, None)}  # type: ignore[index]
    assert said["parity"] == (
        "`parity`: 1.00 at 1 × falls to 0.40 at 16 ×; at least 0.9 up to 2 ×."
    )
    assert said["s5"] == "`s5`: seeds disagree, from 0.30 to 0.95."
    assert "not above always giving the most frequent answer (0.24" in said["regbench"]
    assert said["copy"] == "`copy`: hardly above a guess (0.26, guess 0.20)."
    assert "learnt at one rate only, 0.003" in said["mqar"]
    attention = profiles.by_mixer["attention"]
    (line,) = failures(profiles.by_mixer["delta"], attention)
    assert line.startswith("`copy`: a score 0.51 below that of `attention` (p = ")
    assert failures(attention, attention) == []


def test_a_card_has_the_numbers_of_its_runs(profiles: Profiles) -> None:
    text = page.page(profiles.by_mixer["delta"], profiles, FACTS)
    assert text.startswith("# mixer=delta\n\n````text\nmixer=delta")
    mean = sum(DELTA["mqar"]) / 4
    low, high = t.interval(0.95, 3, mean, sem(DELTA["mqar"]))
    row = f"| mqar | 0.003 | {mean:.3f} | {low:.3f} to {high:.3f} | {above(mean, CHANCE):.2f} |"
    assert row in text
    wide = [run("mlstm", "s5", seed, a) for seed, a in ((1, 0.7), (2, 0.99))]
    (cells,) = page.results(gather(wide).by_mixer["mlstm"], None)[1]
    assert cells[3] == "0.000 to 1.000"  # two seeds: an accuracy is no more than 1
    assert "4 fresh seeds report" in text
    assert f"{2 * 7 * 36 / 3600:.1f} hours on one core of Test CPU" in text
    assert "`attention` with probability 0.19 (" in text
    assert "![scores of delta](mixer-delta.svg)" in text


def test_equal_runs_are_named_as_such() -> None:
    """A window that is longer than the text is full attention: a card must not hide that."""
    found = gather(runs(attention=ATTENTION, sliding_window={**ATTENTION, "copy": DELTA["copy"]}))
    said = page.same(found.by_mixer["sliding_window"], found.by_mixer["attention"])
    assert said.startswith("On mqar each run of `sliding_window` has the numbers of one of")
    assert said in page.page(found.by_mixer["sliding_window"], found, FACTS)
    assert said in choose.page(found, [], FACTS)
    assert page.same(found.by_mixer["attention"], found.by_mixer["attention"]) == ""


def test_a_rate_at_the_end_of_those_tried_is_told() -> None:
    odd = [run("delta", "copy", 0, a, rate=r) for r, a in ((1e-3, 0.3), (3e-3, 0.4), (1e-2, 0.5))]
    odd += [run("delta", "copy", seed, 0.5, rate=1e-2) for seed in (1, 2)]
    text = choose.page(gather([*runs(attention=ATTENTION), *odd]), [], FACTS)
    assert (
        "In 1 of 3 cases the highest rate of 0.001, 0.003, 0.01 is the chosen one: copy (1)" in text
    )
    assert "highest rate" not in choose.page(gather(runs(attention=ATTENTION)), [], FACTS)


def test_choose_names_the_best_and_what_is_not_shown_to_be_worse(profiles: Profiles) -> None:
    text = choose.page(profiles, [], FACTS)
    mqar, copy = (next(x for x in text.splitlines() if x.startswith(f"| {task}")) for task in TASKS)
    link = "[`{0}`](cards/mixer-{0}.md)".format
    assert mqar.startswith(f"| mqar | {link('attention')} | 0.97 | {link('delta')} |")
    assert copy.startswith(f"| copy | {link('retnet')} | 0.90 | {link('attention')} |")
    order = re.findall(r"^\| \[`(\w+)`\]\S+ \| [\d.]+ \| [\d.]+ \|", text, re.M)
    assert order[0] == "attention"
    assert "at least 4 seeds report" in text


TASKS = ("mqar", "copy")


def source(**scores: float) -> Source:
    return Source("S", "s", "n", {"copy": scores, MEAN: scores})


def test_ranks_and_disagreements_beside_a_source(profiles: Profiles) -> None:
    """Ours on `copy`: retnet, attention, delta."""
    same = source(retnet=0.9, attention=0.8, delta=0.1, elsewhere=1.0)
    (copy, _) = ranks(profiles, same)
    assert (copy.task, copy.mixers, copy.estimate.value) == (
        "copy",
        ["attention", "delta", "retnet"],
        1.0,
    )
    assert copy.chance == pytest.approx(1 / 6)
    assert disagreements(profiles, same) == (3, [])
    otherwise = source(delta=0.9, attention=0.8, retnet=0.795)
    number, found = disagreements(profiles, otherwise)
    assert number == 2  # attention and retnet are too close to rank
    assert {(one.first, one.second) for one in found} == {
        ("delta", "attention"),
        ("delta", "retnet"),
    }
    text = choose.page(profiles, [otherwise], FACTS)
    assert "Of 2 pairs that it ranks on our tasks, 2 are significantly the other way" in text
    assert re.search(r"- `copy`: `delta` is 0\.10 above `attention` there, and 0\.5\d below", text)
    assert ranks(profiles, source(delta=0.9, attention=0.8)) == []


def test_two_that_solve_a_task_are_not_ranked_by_it() -> None:
    """Also where the small difference between them is significant."""
    near = [0.9970, 0.9971, 0.9969, 0.9970]
    own = {"attention": [0.9999] * 4, "delta": near, "retnet": [0.3, 0.31, 0.29, 0.3]}
    profiles = gather(runs(**{mixer: {"copy": scores} for mixer, scores in own.items()}))
    text = choose.page(profiles, [source(delta=0.9, attention=0.8, retnet=0.1)], FACTS)
    assert "below it here. Both solve it at our difficulty, which then ranks neither." in text


def test_the_share_of_orders_is_counted() -> None:
    ours = {"a": 0.9, "b": 0.5, "c": 0.7, "d": 0.1}
    theirs = {"a": 0.8, "b": 0.7, "c": 0.6, "d": 0.2}
    there, values = list(theirs.values()), list(ours.values())
    reached = spearmanr(values, there).statistic
    hits = [spearmanr(order, there).statistic >= reached - 1e-9 for order in permutations(values)]
    assert by_chance(ours, theirs) == pytest.approx(sum(hits) / 24)
    assert by_chance(dict.fromkeys("abc", 1.0), theirs) == 1.0
    assert by_chance({str(i): i for i in range(9)}, {str(i): i for i in range(9)}) is None


def test_published_scores_are_of_mixers_and_tasks_that_there_are() -> None:
    for one in sources():
        assert set(one.mixers) <= set(groups()["mixer"])
        for task, scores in one.scores.items():
            assert list(scores) == one.mixers, task
            assert all(0 < score <= 1 for score in scores.values())
    mad, bench = sources()
    printed = {"attention": 0.745, "hyena": 0.660, "mamba": 0.693, "gla": 0.600, "delta": 0.718}
    printed |= {"rwkv7": 0.793}
    assert {m: round(v, 3) for m, v in mad.scores[MEAN].items()} == pytest.approx(printed, abs=6e-4)
    assert bench.scores["memorisation"]["gated_delta"] == 0.55


def test_the_picture_is_the_same_each_time(profiles: Profiles, tmp_path: Path) -> None:
    delta, attention = profiles.by_mixer["delta"], profiles.by_mixer["attention"]
    tasks = [*profiles.tasks, "absent"]
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        radar.draw(delta, attention, tasks, tmp_path / name / "delta.svg")
    text = (tmp_path / "a/delta.svg").read_text(encoding="utf-8")
    assert text == (tmp_path / "b/delta.svg").read_text(encoding="utf-8")
    assert ">mqar<" in text
    assert ">absent<" not in text
    mean, low, high = radar.ends(delta.results["mqar"])
    assert 0 <= low < mean < high <= 1
    assert math.isclose(mean, page.mean_score(delta.results["mqar"]))


def test_committed_pages_have_their_pictures() -> None:
    for card in (ROOT / "docs" / "cards").glob("mixer-*.md"):
        assert card.with_suffix(".svg").is_file()
