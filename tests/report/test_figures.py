"""The figures of a table: axes, bands, costs, legends, lines that differ without colours."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from chimera.config.tables import load
from chimera.report import figures, markdown, metric_grid, rank_figures, style
from chimera.report.diagram import drawn
from chimera.report.figures import FLOPS, SECONDS
from chimera.report.table_results import TableResults, read_results
from chimera.rundir.steps import smooth
from tests.report.runs import Record, make

NORMS, SMOKE = "bitnet_qdyt/norms", ["scale=smoke"]


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path / "runs"))


def results(table: str, rows: dict[str, dict[str, Any]], seeds: int = 2) -> TableResults:
    """A table whose rows have these metrics and more in run.json; values rise by 2 a seed."""

    def told(row: str, seed: int, made: Record) -> Record:
        metrics = {k: v + 2 * seed for k, v in rows[row].get("metrics", {}).items()}
        return {**made, **rows[row], "metrics": metrics or made["metrics"]}

    make(table, {(row, seed): 1.0 for row in rows for seed in range(seeds)}, told=told)
    return read_results(table, SMOKE, list(range(seeds)))


def measured(table: str, values: dict[str, float]) -> tuple[Any, float, float]:
    """The side of the measured values of rows with one seed each; the ends of its axis."""
    make(table, {(row, 0): value for row, value in values.items()})
    axis = figures.bars(read_results(table, SMOKE, [0])).axes[-1]
    low, high = map(float, axis.get_xlim())
    return axis, low, high


@pytest.mark.parametrize(
    ("values", "at_zero"),
    [((700.0, 11_500.0), True), ((190.0, 200.0), False), ((-0.1, 0.2), False)],
)
def test_a_margin_does_not_reach_below_zero(values: tuple[float, float], at_zero: bool) -> None:
    rows = {"full": values[0], "transformer": values[1]}
    _, low, high = measured("titan/efficiency", rows)
    assert (low == 0) is at_zero
    assert low <= values[0] < values[1] < high


@pytest.mark.parametrize(
    ("value", "shown"), [(600.0, "unigram"), (60.0, "unigram 622.2 →"), (9e3, "← unigram 622.2")]
)
def test_a_trivial_predictor_far_from_the_rows_is_named_at_the_edge(
    value: float, shown: str
) -> None:
    """The unigram predictor of these invented runs has a perplexity of 622.2."""
    axis, low, high = measured(NORMS, {"qdyt": value, "layernorm": 1.02 * value})
    assert shown in [text.get_text() for text in axis.texts]
    assert (low <= 622.2 <= high) is (shown == "unigram")


def test_the_best_row_is_at_the_top_and_a_far_one_does_not_squeeze_the_others() -> None:
    rows = {"static_tanh": 325.0, "layernorm": 85.0, "qdyt": 80.0}
    axis, low, high = measured(NORMS, rows)
    names = [label.get_text() for label in axis.figure.axes[0].get_yticklabels()]
    assert names == ["QDyT", "LayerNorm", "static tanh"]
    assert low < 80 < 85 < high < 325
    said = [text.get_text() for text in axis.texts]
    assert "325 →" in [text.replace(".0", "") for text in said]


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ([80.0, 325.0, 85.0], (80.0, 85.0)),
        ([0.0, 7.0, 7.1, 7.2], (7.0, 7.2)),
        ([1.0, 1.1, 1.2, 1.3, 9.0, 9.1], (1.0, 1.3)),
        ([1.0, 9.0], (1.0, 9.0)),
        ([1.0, 2.0, 5.0], (1.0, 5.0)),
        ([], (0.0, 0.0)),
    ],
)
def test_ends_without_the_values_that_squeeze_the_others(
    values: list[float], ends: tuple[float, float]
) -> None:
    assert figures.close(values) == ends


def test_a_picture_has_at_most_twelve_lines_and_says_so() -> None:
    assert len(set(style.COLOURS)) == figures.MOST
    rows = [row.name for row in load("ours/scaling").rows]
    assert len(rows) > figures.MOST
    table = results("ours/scaling", {row: {} for row in rows}, 1)
    axis = figures.curves(table).axes[0]
    assert axis.get_title().endswith(f"; the best 12 of {len(rows)} rows")
    assert len(axis.get_legend_handles_labels()[0]) == figures.MOST


def test_a_long_name_stands_on_several_lines_beside_no_other() -> None:
    axis, _, _ = measured("titan/baselines", {"transformer": 300.0})
    figure = axis.figure
    figure.draw_without_rendering()
    names = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
    assert axis.get_window_extent().width > 0.35 * figure.bbox.width
    assert all(not one.overlaps(other) for one, other in itertools.pairwise(names))
    assert all(one.x0 >= 0 for one in names)


def test_every_step_costs_the_same() -> None:
    table = results(
        NORMS, {"layernorm": {"flops": {"training": 1e6}}, "qdyt": {"flops": {"training": 3e6}}}
    )
    cell = next(cell for cell in table.cells if cell.row == "qdyt")
    data, trainer = cell.config["data"], cell.config["trainer"]
    tokens = data["batch_size"] * data["seq_len"] * trainer["accumulate_grad_batches"]
    assert figures.costs(cell) == {FLOPS: 3e6 * tokens, SECONDS: tokens / 12345.6}
    unfinished = next(cell for cell in table.cells if cell.row == "static_tanh")
    assert figures.costs(unfinished) == {}
    assert figures.costs_known(table)
    flops, seconds = figures.budget(table).axes
    last = 12  # steps of the invented runs
    ends = sorted(line.get_xdata()[-1] for line in flops.lines)
    assert ends == pytest.approx([1e6 * tokens * last, 3e6 * tokens * last])
    times = [line.get_xdata()[-1] for line in seconds.lines]
    assert times == pytest.approx([last * tokens / 12345.6] * 2)
    assert len(flops.collections) == 2  # a band for each row
    assert "](budget.png)" in markdown.report(table, {"report", "curves", "budget"})


def test_multiples_of_the_trained_length() -> None:
    rope = {"val/loss": 3.0, "val/loss_2x": 4.0, "val/loss_4x": 5.0, "val/accuracy_2x": 0.1}
    rows = {"rope": {"metrics": rope}, "learned": {"metrics": {"val/loss": 7.0}}}
    table = results("saidl/positions", rows)
    ((title, head, body),) = metric_grid.grids(table)
    assert title == "val/loss, by multiples of the trained length"
    assert head == ["row", "1 ×", "2 ×", "4 ×"]
    shown = {row[0]: row[1:] for row in body}
    assert shown["rope"][1] == "5.0 ± 1.4 (6.14731)"
    assert shown["learned"] == ["8.0 ± 1.4 (6.62816)", "–", "–"]
    assert "## By length" in markdown.report(table)
    assert figures.lengths(table) is None  # of loss and perplexity only perplexity is drawn


@pytest.mark.slow
def test_lengths_in_tokens_are_drawn_with_the_published_values() -> None:
    speed = {f"cost/tokens_per_second@{n}": 1000.0 * n for n in (256, 4096)}
    rows = {"standard": {"metrics": speed}, "linear": {"metrics": speed}}
    table = results("saidl/hardware", rows)
    ((_, head, body),) = metric_grid.grids(table)
    assert head[1:] == ["256", "512", "1024", "2048", "4096"]
    assert next(r for r in body if r[0] == "standard")[5] == "4,096,001.0 ± 1.4 (802.8)"
    figure = figures.lengths(table)
    assert figure is not None
    hollow = [line for line in figure.axes[0].lines if line.get_markerfacecolor() == "white"]
    assert len(hollow) == 6  # the paper's rows
    assert {line.get_linestyle() for line in hollow} == {":"}
    # A value at one length has no line: its marker alone shows it.
    assert all(line.get_marker() != "None" for line in hollow)


def test_a_rank_of_zero_is_drawn() -> None:
    ranks = {"val/rank": 1.0, "rank/layer_0": 2.0, "rank/layer_1": -1.0}  # a mean of -1 and 1
    figure = figures.lengths(results("saidl/lambda", {"xi_001": {"metrics": ranks}}))
    assert figure is not None
    (line,) = figure.axes[0].lines
    assert list(line.get_ydata()) == [3.0, 0.0]


def test_lines_differ_without_their_colours() -> None:
    looks = [style.line(number) for number in range(28)]
    assert len({(str(look["linestyle"]), look["marker"]) for look in looks}) == len(looks)
    weights = (0.2126, 0.7152, 0.0722)
    first = [
        sum(w * c for w, c in zip(weights, to_rgb(colour), strict=True)) for colour in style.COLOURS
    ]
    assert min(abs(a - b) for a, b in itertools.pairwise(first)) > 0.08


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("val/perplexity", "validation perplexity"),
        ("train/loss", "training loss (nats)"),
        ("tokens_per_second", "tokens per second"),
        ("mmlu/pqem", "mmlu pqem"),
    ],
)
def test_metrics_in_words(metric: str, words: str) -> None:
    assert style.words(metric) == words


def test_smoothing_grows_with_the_run_and_does_not_lag() -> None:
    short = [3.0, 1.0, 2.0]
    assert smooth(short) == short
    slope = [10.0 - 0.01 * step for step in range(800)]
    inside = slice(0, 780)  # at the end the window is cut off
    assert smooth(slope)[inside] == pytest.approx(slope[inside])
    noise = [float(step % 2) for step in range(800)]
    assert max(smooth(noise)[20:780]) < 0.51
    assert max(smooth(noise[:80])[2:78]) > 0.55
    assert smooth([1.0, math.nan, 1.0, 1.0], 2) == [1.0] * 4


@pytest.mark.parametrize("name", ["a", "a name that is far longer than the others are"])
@pytest.mark.parametrize("count", [3, 14])
def test_a_legend_covers_no_data(name: str, count: int) -> None:
    figure = style.empty(9, 6)
    axis = figure.subplots()
    for number in range(count):
        axis.plot([0, 1], [0, number], label=f"{name} {number}", **style.line(number))
    style.legend(figure, axis, "title")
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert not box.overlaps(axis.get_window_extent())
    assert 0 <= box.x0 < box.x1 <= figure.bbox.x1


def test_a_diagram_is_drawn_with_all_its_boxes_and_frames() -> None:
    chart = """flowchart TB
  ids(["token ids"])
  ids --> embedding["embedding<br/>d = 64"]
  subgraph stack["3 blocks"]
    subgraph b0["3 × block"]
      direction TB
      n0["layernorm"] --> m0["Attention"]
      m0 --> a0(("+"))
    end
  end
  embedding --> b0
  b0 --> norm["layernorm"]
"""
    (axes,) = drawn(chart).axes
    texts = {text.get_text(): text.get_position() for text in axes.texts if text.get_text()}
    assert set(texts) >= {"token ids", "embedding\nd = 64", "Attention", "+", "layernorm"}
    heights = [texts[text][1] for text in ("token ids", "Attention", "+", "layernorm")]
    assert heights == sorted(heights, reverse=True)
    frames = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    inner, outer = sorted(frames, key=lambda patch: patch.get_width())
    assert outer.get_y() == inner.get_y() < texts["+"][1] < inner.get_y() + inner.get_height()
    assert texts["layernorm"][1] < outer.get_y()


def test_validations_are_never_cut_off() -> None:
    """Overfitting raises the loss of validations above that of training."""
    axis = figures.curves(
        results(NORMS, {"qdyt": {"validations": [[6, 7.5], [12, 93.0]]}}, 1)
    ).axes[0]
    assert axis.get_ylim()[1] >= 93.0


def test_times_are_drawn_with_the_published_ones_and_against_the_metric() -> None:
    table = "saidl/adapters"
    rows = {"lora": {"wall_seconds": 70.0}, "adalora": {"wall_seconds": 90.0}}
    found = results(
        table, {row: {"metrics": {"val/mcc": 0.1}, **more} for row, more in rows.items()}
    )
    drawn = figures.times(found)
    assert drawn is not None
    published, ours, against = drawn.axes
    assert [bar.get_width() for bar in published.patches] == [563.9, 361.9]
    assert [bar.get_width() for bar in ours.patches] == [70.0, 90.0]
    points = {tuple(map(float, box[0].get_xydata()[0])) for box in against.containers}
    assert points == {(70.0, 1.1), (90.0, 1.1)}
    alone = tuple(line for line in found.lines if line.name == "lora")
    assert figures.times(replace(found, lines=alone)) is None


def test_a_perplexity_of_which_only_the_loss_is_printed_is_drawn() -> None:
    """SAIDL Figure 5 and Table 5 print losses."""
    rows = {
        "alibi": {"metrics": {"val/loss": 5.0, "val/perplexity": 9.0, "val/perplexity_2x": 9.0}}
    }
    drawn = figures.lengths(results("saidl/extrapolation", rows, 1))
    assert drawn is not None
    values = [value for line in drawn.axes[0].lines for value in line.get_ydata()]
    assert any(value == pytest.approx(math.exp(5.467)) for value in values)


def test_ranks_by_block_and_projection_and_by_epoch() -> None:
    layer = "model.deberta.encoder.layer.{}.attention.self.query_proj"
    metrics = {"val/rank": 3.0} | {f"alive/{layer.format(n)}": 2.0 + n for n in (0, 11)}
    metrics |= {f"rank/{layer.format(n)}": 1.0 for n in (0, 11)}
    epochs = {"1": {"step": 6, "gate_sparsity": 0.25, "rank": 6.0}}
    rows = {"lr_lambda_001": {"metrics": metrics, "epochs": epochs}, "xi_001": {}}
    found = results("saidl/lambda", rows, 1)
    assert rank_figures.maps(found.lines[1])["alive"] == {
        (0, "query_proj"): 2.0,
        (11, "query_proj"): 13.0,
    }
    heatmaps = rank_figures.heatmaps(found)
    assert heatmaps is not None
    shown = [text.get_text() for axis in heatmaps.axes for text in axis.texts]
    assert shown == ["2", "13", "1", "1"]
    history = rank_figures.history(found)
    assert history is not None
    drawn = [[*map(float, line.get_ydata())] for axis in history.axes for line in axis.lines]
    assert drawn == [[0.25], [6.0]]
    none = results(NORMS, {"qdyt": {}}, 1)
    assert rank_figures.heatmaps(none) is rank_figures.history(none) is None


def test_settings_at_the_papers_scale_are_those_without_the_runs_overrides() -> None:
    """A budget of the command line is not the paper's, nor is a text of one's own."""
    own = [*SMOKE, "trainer.max_steps=7", "data.seq_len=32"]
    make(NORMS, {("qdyt", 0): 1.0}, overrides=tuple(own))
    report = markdown.report(read_results(NORMS, own, [0]))
    assert re.search(r"trainer.max\\?_steps \| 7 \| (?!7 )\d+ \|", report)
    (said,) = re.findall(r"^Settings, and in brackets.*$", report, re.M)
    assert "data pydocs (wikitext2)" in said
    assert "trainer.max_steps 7 (" in said
