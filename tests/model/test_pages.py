"""`train.py list <name>`: a component on a page, from its docstring and partners; diagrams."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chimera.cli.train import main
from chimera.config.compose import compose, plain
from chimera.config.groups import ZOO, groups
from chimera.config.tables import listing
from chimera.contract_tests import zoo
from chimera.errors import UserError
from chimera.model.component_page import component_page, component_pages
from chimera.model.diagram import mermaid
from chimera.paths import ROOT
from chimera.train.check import checked_model


def lines_of(text: str, head: str) -> str:
    """The text of an option or fact, its further lines joined."""
    rest = text.partition(f"\n{head} ")[2].split("\n")
    end = next((i for i, line in enumerate(rest[1:], 1) if not line.startswith("    ")), len(rest))
    return " ".join(" ".join(rest[:end]).split())


def test_the_page_of_a_mixer() -> None:
    text = component_page("mixer", "mamba")
    assert text.startswith("mixer=mamba\n")
    assert "y = W_out (s ⊙ SiLU(z))" in text
    option = "16 (an integer of at least 1): n, numbers in the state per channel."
    assert lines_of(text, "  state") == option
    assert "null (an integer of at least 1 or null): rank of" in lines_of(text, "  dt_rank")
    assert lines_of(text, "source") == "arXiv 2312.00752"
    assert lines_of(text, "cost") == "t·d·(d + n) for t tokens of width d"
    assert "encoders run it both ways" in lines_of(text, "used in")
    assert lines_of(text, "with position") == "learned, none, sinusoidal"
    assert "train mixer=mamba mixer.state=16" in text.replace("train.py", "train")


def test_partners_are_those_that_build() -> None:
    text = lines_of(component_page("mixer", "slstm"), "with quant")
    named, options = text.removeprefix("all but ").split(", "), groups()["quant"]
    refused = named if text.startswith("all but ") else set(options) - set(named)
    for name in options:
        if name in refused:
            with pytest.raises(UserError):
                zoo.model(mixer="slstm", quant=name, causal=True)
        else:
            zoo.model(mixer="slstm", quant=name, causal=True)
    assert "bitnet158" in refused


@pytest.mark.parametrize(
    ("group", "name"),
    [
        *[("preset", "bert_tiny"), ("optim", "muon"), ("schedule", "wsd"), ("data", "text")],
        *[("task", "mlm"), ("tokenizer", "sentencepiece"), ("scale", "smoke"), ("model", "hf")],
        *[("trainer", "default"), ("mixer", "pattern"), ("logger", "wandb"), ("debug", "limit")],
    ],
)
def test_an_option_that_is_no_component_has_a_page(group: str, name: str) -> None:
    text = component_page(group, name, width=80)
    assert text.startswith(f"{group}={name}\n")
    assert "Traceback" not in text
    wide = [line for line in text.split("\n") if len(line) > 80 and not line.startswith("    ")]
    assert group in ("preset", "scale", "debug") or wide == []


@pytest.mark.slow
@pytest.mark.parametrize(("group", "name"), [(g, n) for g in ZOO for n in groups()[g]])
def test_every_component_has_a_page(group: str, name: str) -> None:
    assert component_page(group, name).startswith(f"{group}={name}\n")


@pytest.mark.slow
def test_a_name_of_several_groups() -> None:
    both = component_pages(["liza"])
    assert "mixer=liza\n" in both
    assert "adapter=liza\n" in both


@pytest.mark.parametrize("group", ["norm", "logger", "preset"])
def test_a_group_is_a_table(
    group: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["list", group]) == 0
    *lines, last = capsys.readouterr().out.rstrip("\n").split("\n")
    assert max(map(len, lines)) <= 80
    for name in groups()[group]:
        (row,) = (line for line in lines if line.startswith(f"│ {name} "))
        assert row.split("│")[2].strip(), name
    assert "list <name>" in last


def test_equations_that_are_too_long_break_between_their_parts() -> None:
    text = component_page("mixer", "mamba", width=60)
    assert max(map(len, text.split("\n\n")[2].split("\n"))) <= 60
    assert "\n      s_t = C_t h_t + D u_t\n" in text
    assert all(len(line) <= 80 for line in listing(80).split("\n"))


@pytest.mark.parametrize(
    ("word", "says"),
    [("retnett", "did you mean 'retnet'"), ("mixer=mamab", "did you mean"), ("tabels", "'tables'")],
)
def test_a_word_that_is_none(word: str, says: str) -> None:
    with pytest.raises(UserError, match=f"cannot list '{word}'.*{says}"):
        component_pages([word])


def test_help_of_a_choice_is_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["norm=dyt", "--help"]) == 0
    assert capsys.readouterr().out.startswith("norm=dyt\n")


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_list_fits_the_terminal(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["list"]) == 0
    *lines, last = capsys.readouterr().out.rstrip("\n").split("\n")
    assert max(map(len, lines)) <= width
    assert "list <name>" in last
    head = next(line for line in lines if "name" in line)
    assert ("encoder" in head) == (width >= 150)


def diagram(settings: object = zoo.TINY, **chosen: str) -> str:
    return mermaid(zoo.model(settings, **chosen), {**zoo.PLAIN, **chosen})  # type: ignore[arg-type]


def test_choices_and_depth_are_named() -> None:
    text = diagram(mixer="retnet", norm="qdyt", quant="bitnet158", ffn="swiglu", position="rope")
    for part in ("Retention", "qdyt", "linear: bitnet158", "SwiGLU", "position: rope", "2 blocks"):
        assert part in text
    assert "times" not in text


def test_loops_adapters_and_experts_are_drawn() -> None:
    text = diagram(replace(zoo.TINY, loops=3), adapter="lora", ffn="moe")
    assert '-. "3 times" .->' in text
    assert "adapter: lora" in text
    assert "4 × " in text
    assert "top 2" in text


def test_a_pattern_that_repeats_is_drawn_once() -> None:
    text = diagram(replace(zoo.TINY, depth=4), mixer="interleaved")
    assert "4 blocks = 2 × 2" in text
    assert text.count("subgraph b") == 2


@pytest.mark.parametrize("name", ["attention", "mamba", "routed", "conv_attention"])
def test_every_box_is_defined_and_closed(name: str) -> None:
    lines = diagram(mixer=name).splitlines()
    assert lines[0] == "flowchart TB"
    assert sum("subgraph" in line for line in lines) == sum(line.strip() == "end" for line in lines)
    assert all(line.count('"') % 2 == 0 for line in lines)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("docs/guide/choosing.md", ["mixer=retnet", "quant=bitnet158", "norm=qdyt"]),
        ("docs/reference/zoo.md", ["preset=titan_bert_ultra"]),
    ],
)
def test_the_documents_are_in_date(file: str, line: list[str]) -> None:
    config = plain(compose(line))
    parts = {group: config[group] for group in ("model", "task", "choices", *ZOO)}
    shown = mermaid(checked_model(parts), config["choices"]).rstrip()
    mark = f"<!-- diagram: python train.py show {' '.join(line)} format=mermaid -->"
    assert f"{mark}\n```mermaid\n{shown}\n```" in (ROOT / file).read_text(encoding="utf-8")
