"""The evidence notebooks keep the results that the kept runs give, and so does the README."""

from __future__ import annotations

import ast
import csv
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import convolution
import evidence
import factorial
import known
import nbformat
import numpy as np
import pandas as pd
import picture
import pytest
import readme
import size
import small_tasks
import summary
from hydra.core.override_parser.overrides_parser import OverridesParser
from tools import characters, documentation
from tools import size_queue as queue
from tools.execute_evidence import FOLDER, executed

from chimera.config.compose import compose, plain
from chimera.config.tables import tables
from chimera.data.tokenizer.fast import ByteBPE
from chimera.paths import ROOT
from chimera.sweep.compose_jobs import list_jobs
from chimera.train.check import check_settings
from tests.notebooks.test_notebooks import code

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NAMES = {factor: [f"{factor}{level}" for level in range(5)] for factor in "nqf"}
#: Effects of the levels, whose sum is zero, and their mean.
TRUE = {
    "n": [-0.2, -0.1, 0, 0.1, 0.2],
    "q": [0.3, 0, -0.1, -0.1, -0.1],
    "f": [0, 0.05, 0, -0.05, 0],
}
MEAN = 0.5


def shown(notebook: nbformat.NotebookNode) -> list[str]:
    """The text of all results."""
    outputs = [output for cell in code(notebook) for output in cell.outputs]
    assert all(output.output_type == "display_data" for output in outputs)
    return [o.data["text/markdown"] for o in outputs if "text/markdown" in o.data]


@pytest.fixture(autouse=True)
def _kept_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records of the repository, and no other runs."""
    monkeypatch.setenv("CHIMERA_RECORDS", str(ROOT / "experiments"))
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_results_are_those_of_the_kept_runs(path: Path) -> None:
    kept = shown(nbformat.read(path, as_version=4))
    assert kept
    assert shown(executed(path)) == kept, "write them anew: make evidence"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_imports_and_defines_nothing(path: Path) -> None:
    cells = code(nbformat.read(path, as_version=4))
    tree = ast.parse("\n".join(cell.source for cell in cells))
    own = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
    assert not [node for node in ast.walk(tree) if isinstance(node, own)]
    assert all(cell.execution_count is None for cell in cells)


@pytest.mark.slow
def test_the_readmes_figures_are_those_of_the_kept_runs() -> None:
    text = readme.FILE.read_text(encoding="utf-8")
    marked = {found[2] for found in readme.MARKED.finditer(text)}
    assert marked | {"not_run"} == {*readme.WRITERS}
    assert readme.written(text) == text, "write them anew: make evidence"
    changed = text.replace("**holds**", "**open**", 1)
    assert readme.written(changed) == text != changed


def test_the_list_of_what_was_not_run_is_that_of_the_reports() -> None:
    text = readme.PAPERS.read_text(encoding="utf-8")
    assert "<!-- figures: not_run -->" in text
    assert readme.written(text) == text, "write it anew: make evidence"


@pytest.mark.slow
def test_the_readmes_picture_is_that_of_the_kept_runs(tmp_path: Path) -> None:
    readme.picture(tmp_path / "picture.svg")
    drawn = (tmp_path / "picture.svg").read_bytes()
    assert b"<svg" in drawn
    assert drawn == readme.PICTURE.read_bytes(), "draw it anew: make evidence"


def test_the_readmes_figures_of_speed_are_those_of_the_results() -> None:
    text = readme.FILE.read_text(encoding="utf-8")
    for name in ("main_job", "speed"):
        assert readme.WRITERS[name]().replace("](../../", "](") in text


def test_the_ten_sentences_say_what_their_intervals_say() -> None:
    """Words such as «beats» are written by hand; the figures beside them are computed."""
    result = FOLDER / "results.ipynb"
    assert shown(nbformat.read(result, as_version=4))[0] == summary.numbered(), "make evidence"
    for path, row, than, says in (
        ("saidl/hybrids", "conv_before_attn", "baseline", ["below"]),
        ("saidl/positions", "rope", "learned", ["below"]),
        ("saidl/positions", "rope", "alibi", ["below"]),
        ("saidl/attention", "standard", "linear", ["open", "above"]),
        ("bitnet_qdyt/norms", "qdyt", "layernorm", ["open"]),
        ("bitnet_qdyt/norms", "qdyt", "static_tanh", ["below"]),
        ("bitnet_qdyt/ffn", "swiglu", "relu2", ["below"]),
        ("titan/baselines", "titan_first", "transformer_rope", ["open", "above"]),
        ("tptt/variants", "derivative_n2", "lora_only", ["above"]),
    ):
        of = evidence.report(path)
        assert of is not None
        found = of.ratio(row, than)
        assert found is not None
        assert found.verdict("below", "above") in says, path


def test_labels_are_moved_apart_in_their_order() -> None:
    places = [0.5, 0.0, 0.45, 0.55]
    moved = picture.apart(places, 0.2)
    assert np.argsort(moved).tolist() == np.argsort(places).tolist()
    assert np.diff(sorted(moved)).min() > 0.2 - 1e-6
    assert np.mean(moved) == pytest.approx(np.mean(places))


def test_a_size_is_the_papers_if_the_interval_has_it() -> None:
    size = evidence.size
    assert size(evidence.Ratio(0.8, 0.7, 0.9, 3), 0.75) == "as claimed"
    assert size(evidence.Ratio(0.98, 0.97, 0.99, 3), 0.62) == "4% of it"
    assert size(evidence.Ratio(0.25, 0.2, 0.3, 3), 0.5) == "2.0 times it"
    assert size(evidence.Ratio(1.1, 0.9, 1.3, 3), 0.5) == "not shown"
    assert size(evidence.Ratio(1.2, 1.1, 1.3, 3), 0.5) == "the other way"


def reported(folder: Path, table: str, rows: Mapping[str, Sequence[float]], **more: float) -> None:
    """Write a report at `medium` below `folder`, with results of each row by seed from 0.

    Args:
        folder: in place of experiments/.
        table: its path.
        rows: results.
        more: published values, by row.
    """
    place = folder / table / "results" / "medium"
    place.mkdir(parents=True)
    with (place / "report.csv").open("w", encoding="utf-8", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(["row", "published", "mean", "seeds", "values"])
        for row, values in rows.items():
            shown = [";".join(map(str, range(len(values)))), ";".join(map(str, values))]
            writer.writerow([row, more.get(row, ""), sum(values) / len(values), *shown])
        writer.writerow(["unigram", "", 600.0, "", ""])


def test_a_verdict_is_read_off_the_interval(tmp_path: Path) -> None:
    rows = {"qdyt": [50, 52, 54], "layernorm": [60, 63, 65], "static_tanh": [49, 60, 54]}
    reported(tmp_path, "bitnet_qdyt/norms", rows, qdyt=8.0, layernorm=10.0)
    found = evidence.claims(tmp_path).set_index("claim")
    assert len(found) == 3
    first = found.loc["QDyT in place of LayerNorm (QDYT 4.3 (2))"]
    assert (first["verdict"], first["paper"], first["ratio"].seeds) == (
        "holds",
        pytest.approx(0.8),
        3,
    )
    assert first["ratio"].low < np.exp(np.mean(np.log([50 / 60, 52 / 63, 54 / 65]))) < 1
    assert found.loc["QDyT in place of a static tanh (QDYT 4.3 (2))", "verdict"] == "open"
    third = found.loc["a static tanh in place of LayerNorm (QDYT 4.3 (2))"]
    assert third["verdict"] in ("holds", "open")
    assert np.isnan(third["paper"])
    assert evidence.Ratio(1.2, 1.1, 1.3, 3).verdict("below", "above") == "above"
    text = evidence.claims_table(found.reset_index())
    assert "| 0.80 × | 0.83 × (" in text
    assert "experiments/bitnet_qdyt/norms/results/medium/report.md) |" in text


def test_rows_that_learn_nothing_are_marked(tmp_path: Path) -> None:
    """The unigram model of `reported` has 600: half of it is the end of the plateau."""
    rows = {"qdyt": [250, 290], "layernorm": [299, 300], "static_tanh": [299, 303]}
    reported(tmp_path, "bitnet_qdyt/norms", rows)
    one = evidence.report("bitnet_qdyt/norms", tmp_path)
    assert one is not None
    assert not evidence.at_chance(one)
    assert evidence.on_plateau(one) == ["static_tanh"]
    reported(tmp_path, "bitnet_qdyt/ffn", {"swiglu": [601, 602], "relu2": [600, 650]})
    other = evidence.report("bitnet_qdyt/ffn", tmp_path)
    assert other is not None
    assert "not better than the baseline `unigram` (600.00)" in evidence.at_chance(other)
    assert {*evidence.on_plateau(other)} == {"swiglu", "relu2"}


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("saidl/adapters", "majority class"),
        ("saidl/epochs", "majority class"),  # whose runs are those of the adapters
        ("titan/stsb", "`overlap`"),
        ("saidl/hybrids", ""),
        ("saidl/targets", ""),
    ],
)
def test_tables_at_chance_leave_the_list(path: str, says: str) -> None:
    of = evidence.report(path)
    assert of is not None
    found = evidence.at_chance(of)
    assert says in found
    assert bool(says) == bool(found)
    texts = shown(nbformat.read(FOLDER / "results.ipynb", as_version=4))
    lists = [t for t in texts if "| table |" in t and of.link(of.table.title) in t]
    assert ["| at chance |" in t for t in lists] == [bool(says)]


def test_claims_name_rows_of_their_tables() -> None:
    listed = pd.read_csv(FOLDER / "claims.csv")
    for path, part in listed.groupby("table"):
        rows = {row.name for row in evidence.load(path).rows}
        assert {*part["row"], *part["than"]} <= rows


def test_losses_are_logarithms_and_seeds_are_paired() -> None:
    first, second = {0: 1.0, 1: 2.0, 2: 9.0}, {0: 1.5, 1: 2.5}
    found = evidence.ratio(first, second, float)
    assert found is not None
    assert found.seeds == 2
    assert found.value == pytest.approx(np.exp(-0.5))
    assert evidence.ratio(first, {0: 1.5}) is None
    with pytest.raises(ValueError, match="two runs of one seed"):
        evidence.by_seed(pd.DataFrame({"seed": [0, 0], "x": [1.0, 2.0], "name": "run"}), "x")


def simulated(*, seeds: int = 2, noise: float = 0.0, pair: float = 0.0, draw: int = 0) -> pd.Series:
    """Runs of a Latin square: true effects, a deviating cell, a shift of each seed, noise."""
    random = np.random.default_rng(draw)
    shifts = random.normal(0, 0.5, seeds)
    shifts -= shifts.mean()
    found = {}
    for i in range(5):
        for j in range(5):
            levels = dict(zip("nqf", (i, j, (i + j) % 5), strict=True))
            cell = tuple(NAMES[factor][level] for factor, level in levels.items())
            true = MEAN + sum(TRUE[factor][level] for factor, level in levels.items())
            true += pair * (cell[:2] == ("n1", "q3"))
            for seed in range(seeds):
                found[*cell, seed] = true + shifts[seed] + random.normal(0, noise)
    return pd.Series(found).rename_axis([*"nqf", "seed"])


def test_known_effects_are_recovered() -> None:
    """Exactly without noise; a seed's shift is no noise, nor is it for a cell with one seed."""
    fit = factorial.Fit(simulated().drop(("n0", "q0", "f0", 1)), NAMES)
    assert fit.freedom == 12
    assert fit.coefficients[0] == pytest.approx(MEAN)
    assert fit.noise is not None
    assert fit.noise[0] == pytest.approx(0, abs=1e-9)
    for factor, part in fit.effects().groupby("factor"):
        assert [*part["value"]] == pytest.approx(TRUE[str(factor)], abs=1e-9)
    assert fit.sums()["n0", "q0", "f4"] == pytest.approx(0.6)
    assert sum(part for part, _ in fit.shares().values()) == pytest.approx(1)


def test_intervals_cover_the_effects() -> None:
    covered, errors = [], []
    true = [effect for effects in TRUE.values() for effect in effects]
    for draw in range(100):
        found = factorial.Fit(simulated(seeds=1, noise=0.1, draw=draw), NAMES).effects()
        covered += [*(abs(found["value"] - true) <= found["half"])]
        errors += [*(found["value"] - true)]
    assert 0.93 < np.mean(covered) < 0.97
    assert np.std(errors) == pytest.approx(0.1 * np.sqrt(4 / 25), rel=0.1)


def test_noise_of_seeds_and_lack_of_fit() -> None:
    drawn = [factorial.Fit(simulated(noise=0.1, draw=draw), NAMES) for draw in range(60)]
    assert np.sqrt(np.mean([fit.noise[0] ** 2 for fit in drawn])) == pytest.approx(0.1, rel=0.05)
    assert drawn[0].noise[1] == 24
    assert 0.4 < np.mean([fit.lack()[1] for fit in drawn]) < 0.6
    assert factorial.Fit(simulated(noise=0.02, pair=0.3), NAMES).lack()[1] < 0.001
    assert factorial.Fit(simulated(seeds=1, noise=0.1), NAMES).lack() is None


def test_a_planted_deviation_is_found_with_the_pairs_that_cannot_be_told_apart() -> None:
    (found,), tested, least = factorial.Fit(
        simulated(noise=0.02, pair=0.4, draw=3), NAMES
    ).deviations()
    assert (("n", "n1"), ("q", "q3")) in found.pairs
    assert len(found.pairs) == 3
    assert abs(found.value - 0.4) < found.half < 0.4
    assert tested == 25
    assert 0 < least < 0.4
    none, *_ = factorial.Fit(simulated(noise=0.1, draw=3), NAMES).deviations()
    assert none == []


def test_seed_zero_chooses_the_rate_by_accuracy_then_steps_then_the_lower_rate() -> None:
    choosing = [
        ("a", 0.01, 0.9, 800),
        ("a", 0.001, 0.9, 400),
        ("b", 0.003, 0.8, 800),
        ("b", 0.01, 0.8, 800),
    ]
    lines = [
        {"mixer": m, "rate": r, "seed": 0, "val/accuracy": a, "steps": s, "trainer.max_steps": 800}
        for m, r, a, s in choosing
    ]
    lines += [line | {"seed": seed} for line in lines for seed in (1, 2)]
    found = small_tasks.at_best_rate(pd.DataFrame(lines), ["mixer"])
    assert {*zip(found["mixer"], found["rate"], strict=True)} == {("a", 0.001), ("b", 0.003)}
    assert len(found) == 4


def test_who_is_as_good_and_where_others_disagree() -> None:
    a, b, c = ([0.90, 0.92, 0.91, 0.93], [0.91, 0.90, 0.92, 0.92], [0.20, 0.23, 0.21, 0.22])
    ours = {m: {"t": dict(enumerate(v))} for m, v in {"a": a, "b": b, "c": c}.items()}
    assert small_tasks.as_good(ours, "t")[:2] == ["a", "b"]
    assert "c" not in small_tasks.as_good(ours, "t")
    number, otherwise = small_tasks.disagreements(ours, {"t": {"a": 0.1, "c": 0.7, "b": 0.105}})
    assert number == 2  # a and b are level there
    assert {(first, second) for _, first, second, *_ in otherwise} == {("c", "a"), ("c", "b")}
    means = {mixer: small_tasks.mean(of["t"]) for mixer, of in ours.items()}
    assert small_tasks.orders_as_high(means, {"a": 3, "b": 2, "c": 1}) == pytest.approx(1 / 6)
    assert small_tasks.orders_as_high(means, {"a": 1, "b": 2, "c": 3}) == 1


def test_published_scores_have_our_names() -> None:
    for source in small_tasks.published().values():
        assert "delta+conv=4" in source["by_task"]["compression"]
        assert "delta" not in source["by_task"]["compression"]
        means = source["by_task"]["mean of all tasks"]
        assert 0 < min(means.values()) < max(means.values()) <= 1


def test_links_of_the_notebooks_resolve() -> None:
    from tools.docs_site import LINK

    for path in NOTEBOOKS:
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "markdown":
                for _, address, *_ in LINK.findall(cell.source):
                    assert address.startswith("http") or (path.parent / address).exists(), address
    assert FOLDER.parents[1] == ROOT


def test_what_the_page_of_the_convolution_says() -> None:
    """Its words on who gains are written by hand; the tables beside them are computed."""
    found = convolution.recall().set_index("mixer")
    assert {"mamba2", "gated_delta", "hyena"} <= {*found.index[found["own"]]}
    assert not {"attention", "delta", "retnet", "deltaproduct"} & {*found.index[found["own"]]}
    by_task = {(line["mixer"], line["task"]): line for line in convolution.on_tasks()}
    assert len(by_task) == 2 * 8
    mean = small_tasks.mean
    for (mixer, task), line in by_task.items():
        gain = mean(line["with"]) - mean(line["without"])
        assert gain < 0.1 or task not in ("parity", "s5"), (mixer, task)
    for task, close in (("fuzzy_recall", True), ("regbench", True), ("induction", False)):
        line = by_task["attention", task]
        assert (mean(line["with"]) - mean(line["without later"]) < 0.1) == close, task
    assert all(ratio.high < 1 for ratio in convolution.on_text().values())
    assert all(one["with"] < one["without"] for one in convolution.shorter())


def test_more_runs_that_were_not_run_are_jobs_of_their_commands() -> None:
    known = tables()
    for entry in evidence.not_run().itertuples():
        if entry.what in known:
            continue
        words = [word for word in shlex.split(entry.command)[3:] if "workers=" not in word]
        jobs = list_jobs(words, OverridesParser.create().parse_overrides(words))
        assert len(jobs) == entry.runs, entry.what
        for job in (jobs[0], jobs[-1]):
            check_settings(plain(compose(job)))


def test_known_sizes_are_those_of_our_models() -> None:
    """A count that differs says why; the others are equal to the last parameter."""
    found = known.sizes()
    for one in found.itertuples():
        assert (one.ours == one.published) == (not one.differs), one.model
        assert abs(one.ours / one.published - 1) < 0.01, one.model
    assert (found["ours"] == found["published"]).sum() >= 5


def test_other_programs_compute_what_we_do() -> None:
    found = evidence.results("exported")["perplexity"]
    ours = found.pop("ours")
    assert found["transformers, exported folder"] == ours
    assert {name.partition(" ")[0] for name in found} == {
        "transformers,",
        "transformers'",
        "llama.cpp,",
    }
    assert all(abs(value / ours - 1) < 5e-3 for value in found.values())


def sized(row: str, dim: int, steps: int, speed: float, bits: float) -> dict[str, object]:
    """A run of the queue whose text has a token a byte."""
    return {
        "row": row, "model.dim": dim, "seed": 0, "trainer.max_steps": steps, "steps": steps,
        "gpu": "card", "tokens_per_second": speed, "data.batch_size": 16, "data.seq_len": 1024,
        "data.splits.valid.tokens": 1.0, "data.splits.valid.bytes": 1.0, "flops.training": dim**2,
        "val/loss": bits * np.log(2),
    }  # fmt: skip


def test_the_queue_of_the_large_size_is_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines are settings of runs; equal seconds follow from the speeds of finished ones."""
    monkeypatch.setattr(queue, "frame", lambda table: pd.DataFrame())
    assert not [*queue.lines("seconds")]
    lines = [sized("attention", 768, 3000, 1000.0, 1.0), sized("mamba2", 768, 3000, 250.0, 1.0)]
    lines += [sized("retnet", 128, 500, 9000.0, 1.0)]  # a smaller model says nothing of the speed
    monkeypatch.setattr(queue, "frame", lambda table: pd.DataFrame(lines))
    assert [*queue.lines("seconds")] == [("mamba2", "seed=0 trainer.max_steps=750")]
    count = 0
    for stage in ("tokens", "seconds", "small", "rates"):
        for row, given in queue.lines(stage):
            words = [f"+ours/size={row}", "scale=paper", *queue.TEXT, *given.split()]
            jobs = list_jobs(words, OverridesParser.create().parse_overrides(words))
            assert len(jobs) == (3 if stage == "rates" else 1)
            assert plain(compose(jobs[0]))["model"]["depth"] == {"small": count // 5 * 2 + 2}.get(
                stage, 12
            )
            count += stage != "seconds"
    assert count == 5 + 15 + 5


def test_the_large_size_stands_beside_the_law_of_smaller_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = [
        sized("attention", dim, steps, 1000.0, 3.0 * (dim**2 * steps * 16 * 1024.0) ** -0.05)
        for dim, steps in ((128, 500), (256, 1000), (512, 2000), (768, 3000))
    ]
    monkeypatch.setattr(size, "runs", lambda table: pd.DataFrame(lines))
    *_, told = size.compared().strip().splitlines()
    assert told.count(told.split("|")[-2].strip()) == 2  # measured, and by the law
    assert size.figure() is not None
    monkeypatch.setattr(size, "runs", lambda table: pd.DataFrame())
    assert (size.compared(), size.figure()) == (size.NOT_RUN, None)


def test_documentation_is_paragraphs(tmp_path: Path) -> None:
    page = "<head><title>A title of six words is left</title></head>"
    page += "<p>It says &lt;what&gt; it is good for.</p>"
    page += "<pre>this is code that nobody needs to read</pre><div>Too short</div>"
    for name in ("a.html", "b.html"):
        (tmp_path / name).write_text(page)
    (tmp_path / "c.txt").write_text(
        "One sentence\nover two lines of text.\n\n| 1 | 2 | 3 | 4 | 5 |\n"
    )
    assert [*documentation.documents(tmp_path, set())] == [
        "It says <what> it is good for.", "One sentence over two lines of text."
    ]  # fmt: skip


def test_characters_are_tokens(tmp_path: Path) -> None:
    """Two blank lines stay, and every character is a token of its own."""
    text = "To be,\n\nor not to be: 'tis\n\n\n" * 40
    (tmp_path / "text.txt").write_text(text)
    characters.main(str(tmp_path / "text.txt"), str(tmp_path))
    rows = [
        json.loads((tmp_path / f"text/{n}.jsonl").read_text())["text"] for n in ("train", "valid")
    ]
    assert "".join(rows) == text
    assert len(rows[0]) == int(0.9 * len(text))
    tokenizer = ByteBPE(path=str(tmp_path / "characters"), mlm_tokens=False).build([])
    (ids,) = tokenizer.encode([text])
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text


def test_rates_at_the_end_of_their_grids() -> None:
    for path in ("saidl/attention", "saidl/hybrids", "saidl/positions", "bitnet_qdyt/norms"):
        assert evidence.at_ends(path) == {"highest": [], "lowest": []}, path
    for path in ("titan/baselines", "titan/pattern"):
        assert not evidence.at_ends(path)["highest"], path
    assert not evidence.at_ends("ours/scaling")["highest"]
    assert "attention_3" in evidence.at_ends("ours/scaling")["lowest"]
    assert "adalora" in evidence.at_ends("saidl/adapters")["highest"]
    runs = [
        {"mixer": "a", "task": task, "seed": 0, "trainer.max_steps": 800, "rate": rate}
        | {"steps": steps, "val/accuracy": accuracy}
        for task, rate, steps, accuracy in (
            ("t", 0.001, 800, 0.4), ("t", 0.01, 800, 0.5),  # the highest
            ("u", 0.001, 400, 1.0), ("u", 0.01, 300, 1.0),  # the highest, and solved
            ("v", 0.001, 800, 0.5), ("v", 0.01, 800, 0.5),  # equal: the lowest
        )
    ]  # fmt: skip
    found = small_tasks.at_highest(pd.DataFrame(runs))
    assert found.sum().tolist() == [3, 2, 1]
    assert found.loc["u"].tolist() == [1, 1, 1]
    # Another mixer's higher rate makes no case's own highest one inner.
    more = runs[1] | {"mixer": "b", "rate": 0.03}
    assert small_tasks.at_highest(pd.DataFrame([*runs, more])).loc["t"].tolist() == [2, 2, 0]


def test_ranks_that_a_higher_rate_moves() -> None:
    values = {("a", 0.01): 0.3, ("a", 0.03): 0.6, ("b", 0.01): 0.5, ("b", 0.03): 0.2}
    runs = [
        {"mixer": mixer, "task": "t", "seed": seed, "trainer.max_steps": 800, "rate": rate}
        | {"steps": 800, "val/accuracy": value, "score": value}
        for (mixer, rate), value in values.items()
        for seed in (0, 1)
    ]
    (line,) = small_tasks.moved(pd.DataFrame(runs))
    assert (line["mixer"], line["rate"]) == ("`a`", "0.03")
    assert [line[key] for key in ("score before", "score now")] == ["0.30", "0.60"]
    assert [line[key] for key in ("rank before", "rank now")] == ["2", "1"]


def test_a_changed_task_is_no_profile() -> None:
    """A run with more pairs or another size would count as one more seed of the usual task."""
    usual = small_tasks.kept(choices__data="mad/fuzzy_recall").iloc[0].to_dict()
    assert small_tasks._change(usual) == ""
    changed = usual | {"data.pairs": 32, "model.heads": 1}
    assert small_tasks._change(changed) == "data.pairs=32 model.heads=1"
