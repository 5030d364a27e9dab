"""Links and anchors of the pages resolve, commands in them do what they say, the site builds."""

from __future__ import annotations

import gzip
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

from chimera.cli.main import main
from chimera.config.compose import compose, plain
from chimera.config.groups import ZOO, groups
from chimera.config.tables import computed_tables, load, load_computed, tables
from chimera.errors import UserError
from chimera.paths import ROOT
from chimera.rundir.directory import RunDir
from chimera.sweep import search
from chimera.train.check import check_settings
from tests.cli.test_template import planned
from tests.data.glue import cola
from tests.data.kit import sentences
from tests.model.hf_folders import folder
from tests.train import tiny

DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
BLOCK = re.compile(r"^```(?:bash|sh)\n(.*?)^```", re.S | re.M)
#: A whole command within a sentence or a table, and not a command's name alone.
SPAN = re.compile(r"`([^`\n]+)`")
INLINE = re.compile(r"(?:chimera|make|python) (?:-m )?\S+ .+|make [\w-]+")
#: Pages whose commands have tests of their own: tests/config/test_strangers.py, test_papers.py,
#: tests/cli/test_template.py.
TESTED_APART = ("own-parts", "papers", "lightning-hydra-template")
#: Programs of others, a cluster, or the repository's own tools: known, not started here.
ELSEWHERE = ("pip", "hf", "lm_eval", "llama-cli", "srun", "torchrun", "tools/slurm_local.sh")
#: Values of `key=<…>`, of the files that `place` makes.
NAMED = {
    "run": "runs/name",
    "init_from": "runs/name",
    "run_dir": "runs/name",
    "to": "exported",
    "data.path": "glue",
    "data": "mmlu",
    "launcher.partition": "gpu",
}
SCRIPTS = ("train", "eval", "generate", "export")


def anchors(page: Path) -> set[str]:
    """Addresses of a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    heads = re.findall(r"^#+ (.*)$", text, re.M)
    plain_heads = (re.sub(r"\[([^\]]*)\]\([^)]*\)|`", r"\1", head) for head in heads)
    kept = (re.sub(r"[^\w\s-]", "", head).strip().lower() for head in plain_heads)
    return {re.sub(r"[-\s]+", "-", head) for head in kept}


def made(address: Path) -> bool:
    """Whether a page is one that tools/docs_site.py makes."""
    inside = address.relative_to(DOCS).with_suffix("").as_posix()
    known = {f"reference/{page}" for page in ("keys", "commands", "api", "cards/index")}
    known |= {"evidence/tables/index"} | {f"reference/cards/{group}" for group in ZOO}
    named = (*tables(), *computed_tables())
    known |= {f"evidence/tables/{table.replace('/', '-')}" for table in named}
    return inside in known


def test_links_and_anchors_resolve() -> None:
    dead = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
        for address, anchor in LINK.findall(re.sub(r"`[^`\n]*`", "", text)):
            there = (page.parent / address).resolve() if address else page
            found = ":" in address or there.exists() or made(there)
            written = there.exists() and ":" not in address
            if not found or (anchor and written and anchor not in anchors(there)):
                dead.append(f"{page.stem}: {address}#{anchor}")
    assert not dead


def test_tests_that_a_page_names_are_there() -> None:
    named = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        folder = re.search(r"test, in `(tests/\w+/)`", text)  # of a table's column
        for file, function in re.findall(r"([\w/]+\.py)::(\w+)", text):
            source = ROOT / (folder[1] if folder and "/" not in file else "") / file
            assert f"\ndef {function}(" in source.read_text(encoding="utf-8"), file
            named += 1
        for file in re.findall(r"`(tests/[\w/]+\.py)`", text):
            assert (ROOT / file).is_file(), file
    assert named >= 18


def test_every_paper_that_a_table_names_is_explained() -> None:
    text = (DOCS / "evidence/papers.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"^\| ([A-Z]+) \|", text, re.M))
    sources = [*map(load, tables()), *map(load_computed, computed_tables())]
    named = {name for table in sources for name in re.findall(r"\b[A-Z]{4,}\b", table.source)}
    assert named - {"SPEC"} == explained


def test_both_citations_agree() -> None:
    bibtex = dict(re.findall(r"(\w+) = {+(.*?)}+,?\n", (DOCS / "reference/cite.md").read_text()))
    other = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {key: bibtex[key] for key in ("title", "version", "license")} == {
        key: other[key] for key in ("title", "version", "license")
    }
    assert bibtex["author"] == other["authors"][0]["name"]
    assert "year" in bibtex
    assert "url" in bibtex


def lines() -> Iterator[tuple[str, str]]:
    """Every command of a page, without its remark."""
    for page in (page for page in PAGES if page.stem not in TESTED_APART):
        text = page.read_text(encoding="utf-8")
        for block in BLOCK.findall(text):
            for line in block.replace("\\\n", " ").splitlines():
                command = re.sub(r"\s#.*$", "", line).strip()
                if command:
                    yield page.stem, " ".join(command.split())
        for span in SPAN.findall(re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)):
            open_ends = "…" in span or "<" in span.replace("runs/<name>", "")
            if INLINE.fullmatch(span) and not open_ends:
                yield page.stem, span


COMMANDS = list(dict.fromkeys(lines()))


def words_of(line: str) -> list[str]:
    """Words of a command with the files of `place` for `<…>`."""
    causal = "preset=tptt" in line or "tptt=" in line

    def value(match: re.Match[str]) -> str:
        key = match[1]
        return f"{key}={('llama' if causal else 'bert') if key == 'model.name' else NAMED[key]}"

    line = re.sub(r"runs/<name>", "runs/name", line)
    line = re.sub(r"([\w.]+)=<[^>]*>", value, line.replace("MMLU's", "MMLU"))
    words = shlex.split(line)
    if words[0].removesuffix("/python").endswith(".venv/bin") or words[0] == ".venv/bin/python":
        words[0] = "python"
    return words


def kind(line: str) -> str:
    """What starts a command."""
    first, *rest = line.replace(".venv/bin/python", "python").split()
    if first in (*ELSEWHERE, "make", "chimera"):
        return first
    assert first == "python", line
    assert rest[0] in ("-m", *(f"{script}.py" for script in SCRIPTS)), line
    return rest[0]


def test_every_command_is_of_a_kind_that_is_tested() -> None:
    kinds = {kind(line) for _, line in COMMANDS}
    assert {"make", "chimera", "train.py", "eval.py", "generate.py", "export.py", "-m"} <= kinds
    assert len(COMMANDS) > 100


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs, texts and models that the pages speak of."""
    root = tmp_path_factory.mktemp("docs")
    text = "\n\n".join(sentences(300))
    for name in ("book.txt", "corpus/a.txt", "train/a.txt", "dev.txt", "test.txt", "es/a.txt"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    for name in ("en.txt", "wiki/a.txt", "web/a.txt", "prompts.txt"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text[:2000])
    (root / "dumps/1").mkdir(parents=True)
    with gzip.open(root / "dumps/1/es_1.jsonl.gz", "wt") as file:
        file.write('{"raw_content": "uno dos tres"}\n' * 300)
    for part in ("dev", "test"):
        (root / "mmlu" / part).mkdir(parents=True)
        (root / f"mmlu/{part}/cats_{part}.csv").write_text("the cat,sees,runs,is,red,A\n")
    cola(root / "glue")
    for model in ("llama", "bert"):
        folder(model, root / model)
    tiny.write(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setenv("CHIMERA_RUNS", str(root / "runs"))
        patch.setenv("CHIMERA_RECORDS", str(root / "records"))
        small = [*tiny.LINE, "trainer.max_steps=2", "task=causal_lm", "model.dim=32"]
        parts = ["mixer=attention", "norm=rmsnorm", "ffn=swiglu", "position=rope"]
        whole = ["model.head_transform=false", "tokenizer=sentencepiece"]
        for name in ("name", "a", "b"):
            run = [f"run_dir=runs/{name}", "tokenizer.vocab_size=300", f"seed={ord(name[0])}"]
            run.append("trainer.val_check_interval=1")  # which makes a best checkpoint
            assert main(["train", *small, *parts, *whole, *run]) == 0
        kept = ("data", "trainer", "task", "logger")  # the parts are those of the checkpoint
        begun = [word for word in small if word.startswith(kept)]
        begun += ["init_from=hf:llama", "model.max_len=64", "run_dir=runs/llama"]
        assert main(["train", *begun]) == 0
        assert main(["records", "add", "runs/a"]) == 0
    return root


@pytest.mark.slow
@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=lambda text: text[:60])
def test_a_command_is_accepted(
    page: str, line: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"  # a copy: what one command writes is not there for the next
    shutil.copytree(place, here)
    monkeypatch.chdir(here)
    monkeypatch.setenv("CHIMERA_RUNS", str(here / "runs"))
    monkeypatch.setenv("CHIMERA_RECORDS", str(here / "records"))
    words = [re.sub("^to=", f"to={tmp_path}/", word) for word in words_of(line)]
    if "like=llama" in words:  # of a run that began with that checkpoint
        words = [word.replace("runs/name", "runs/llama") for word in words]
    if any(word.endswith(".gguf") for word in words):
        pytest.importorskip("gguf", reason="gguf is not installed: pip install 'chimera-lm[gguf]'")
    if words[0] in ELSEWHERE:
        return
    if words[0] == "make":
        done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    elif words[:2] == ["python", "-m"]:
        assert find_spec(words[2]) is not None
        if words[2] == "benchmarks":
            assert not words[3:] or (ROOT / "benchmarks" / f"{words[3]}.py").is_file()
    elif words[0] == "chimera":
        accept(words[1], words[2:], monkeypatch)
    else:
        accept(words[1].removesuffix(".py"), words[2:], monkeypatch)


def accept(command: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a command that trains nothing; compose and check the runs of one that does."""
    if command == "sweep":
        command, words = "train", ["-m", *words]
    if command == "train" and words and words[0] in ("list", "show"):
        command, words = words[0], words[1:]
    if command != "train" or words[:1] == ["--cfg"]:
        if any(word.startswith("packed=") for word in words):  # the run of `place` is not ternary
            words = [word for word in words if not word.startswith("packed=")]
        # No run here has the rates that `chimera rates` chooses from.
        assert main([command, *words]) == (2 if command == "rates" else 0)
    elif any("running_mean" in word for word in words):
        return  # tests/config/test_strangers.py has the files of own-parts
    elif any(word.startswith("search.") for word in words):
        monkeypatch.setattr(search.SearchScheduler, "run", lambda _: [])
        monkeypatch.setattr(search, "show", lambda *_: None)
        monkeypatch.setattr(search, "compare", lambda *_, **__: None)
        assert main([command, *words]) == 0
    elif "-m" in words:
        words = [word for word in words if not word.startswith("launcher")]  # of a cluster
        if not any(word.startswith("scale=") for word in words):
            words.append("scale=small")  # the papers' own data are on the hub
        jobs = planned(words, monkeypatch)
        assert jobs
        for job in jobs[:3]:
            check_settings(plain(compose(job)))
    else:
        if "extend=true" in words:
            finished([w for w in words if not w.startswith(("extend=", "trainer.max_steps="))])
        try:
            check_settings(plain(compose(words)))
        except UserError as error:  # a data set of the hub, which a test does not fetch
            assert "cannot be fetched" in str(error)  # noqa: PT017


@pytest.mark.slow
def test_the_list_of_a_runs_files_is_whole(place: Path) -> None:
    text = (DOCS / "guide/runs.md").read_text(encoding="utf-8").partition("## Commands")[0]
    for file in (place / "runs/name").iterdir():
        name = re.sub(r"^eval-\d+", "eval-<length>", file.name)
        shown = f"`{name}/`" if file.is_dir() else f"`{name}`"
        assert file.name == ".lock" or shown in text, file.name


def finished(words: list[str]) -> None:
    """The directory of a finished run of these words, without what training leaves."""
    config = plain(compose(words))
    directory = RunDir(Path(config["run_dir"]))
    directory.start(config, words)
    directory.write_status("DONE")


def python_blocks(page: str) -> list[str]:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.S)
    assert blocks
    return blocks


def test_python_examples_have_a_test() -> None:
    """Here or where the page is named: tests/{api,export,config}."""
    pages = {page.stem for page in PAGES if "```python" in page.read_text(encoding="utf-8")}
    here = {"first-steps", "runs", "tptt"}
    assert pages == here | {"library", "export", "own-parts", "CONTRIBUTING"}


@pytest.mark.slow
def test_python_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHIMERA_RECORDS", str(ROOT / "experiments"))
    for block in [*python_blocks("guide/first-steps.md"), *python_blocks("guide/runs.md")]:
        exec(block, {"__name__": "page"})
    assert list((tmp_path / "runs").glob("*/run.json"))


@pytest.mark.slow
def test_the_grafts_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    monkeypatch.chdir(tmp_path)
    folder("llama", tmp_path / "llama")
    names = {"inputs": {"input_ids": torch.tensor([[1, 2, 3]])}}
    names |= {"AutoModelForCausalLM": AutoModelForCausalLM}
    for block in python_blocks("guide/tptt.md"):
        exec(block.replace("meta-llama/Llama-3.2-1B", "llama"), names)
    assert {"folder", "whole"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install .[docs]")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    for group in ZOO:
        text = (tmp_path / f"reference/cards/{group}.html").read_text(encoding="utf-8")
        assert all(f'id="{name}"' in text for name in groups()[group])
    pages = {file.stem for file in (tmp_path / "evidence/tables").glob("*.html")} - {"index"}
    assert pages == {table.replace("/", "-") for table in (*tables(), *computed_tables())}
    assert "times of tables" not in (tmp_path / "guide/sweeps.html").read_text(encoding="utf-8")
    assert "chimera.contract.Mixer" in (tmp_path / "reference/api.html").read_text(encoding="utf-8")
    index = (tmp_path / "search/search_index.js").read_text(encoding="utf-8")
    assert index.startswith("var __index")
    assert '"files/notebooks/' in index
    assert '"files/tests/' not in index
    assert "\\&lt;" not in (tmp_path / "evidence/tables/saidl-adapters.html").read_text()
    assert "<a folder" not in (tmp_path / "evidence/tables/bitnet_qdyt-glue.html").read_text()
    own_mixer = (tmp_path / "files/notebooks/own_mixer.ipynb.html").read_text(encoding="utf-8")
    assert "torch.Size([1, 3, 4000])" in own_mixer
    assert '<div class="diagram">' in (tmp_path / "guide/choosing.html").read_text(encoding="utf-8")
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r'(?:src|href)="https?://[^"]*\.(?:js|css)"', text), page.name
        for address in re.findall(r'(?:href|src)="([^"#:?]+)(?:#[^"]*)?"', text):
            if not address.startswith("/"):
                assert (page.parent / unquote(address)).exists(), f"{page.name}: {address}"
