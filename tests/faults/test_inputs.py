"""Files that users have: each is read for what it is, or refused in one line that says where."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import random
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pyarrow
import pytest

from chimera import dotted
from chimera.cli import train
from chimera.cli.finished import export
from chimera.cli.main import main
from chimera.config.compose import compose, plain
from chimera.config.groups import groups
from chimera.rundir.directory import RunDir
from tests.data.kit import bert_vocabulary
from tests.faults.kit import READERS, make, one_refusal, outcome, read
from tests.rundir.kit import a_run
from tests.safety import kit as safe

LINES = [f"Line {i} of the text about the weather, number {7 * i}." for i in range(400)]
TEXT = "\n".join(LINES)
BIG, DEEP = "1" * 5000, "[" * 200_000
Check = Callable[[list[str]], bool] | None


def rows(*odd: str, values: list[str] = LINES) -> str:
    """JSON lines; the odd ones are the 51st and those after it."""
    made = [json.dumps({"text": value}) for value in values]
    return "\n".join([*made[:50], *odd, *made[50:]]) + "\n"


def records(**odd: Any) -> list[dict[str, Any]]:
    """Alpaca's records; the eighth one is odd."""
    made = [{"instruction": f"Say {i}", "input": "", "output": f"{i} it is."} for i in range(30)]
    return [made[i] | odd if i == 7 else made[i] for i in range(30)]


def in_lines(**odd: Any) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in records(**odd))


def parquet(flip: bool = True, columns: int = 1) -> bytes:
    """One with flipped bits in its pages."""
    import pyarrow
    import pyarrow.parquet

    out = pyarrow.BufferOutputStream()
    table = pyarrow.table([LINES] * columns, names=["text"] * columns)
    pyarrow.parquet.write_table(table, out)
    made = out.getvalue().to_pybytes()
    return made[:60] + bytes(byte ^ 0x55 for byte in made[60:90]) + made[90:] if flip else made


def same(texts: list[str]) -> bool:
    """Nothing but the lines, each once."""
    return sorted(line for text in texts for line in text.split("\n")) == sorted(LINES)


def has(*parts: str) -> Check:
    return lambda texts: all(part in "\n".join(texts) for part in parts)


def count(number: int) -> Check:
    return lambda texts: len(texts) == number and "None" not in "".join(texts)


def mmlu(row: str) -> dict[str, str]:
    return {f"{p}/logic_{p}.csv": f"{row}\r\nTwo?,a,b,c,d,B\r\n" for p in ("dev", "test")}


def sst2(row: str) -> dict[str, str]:
    head, good = "sentence\tlabel\n", "good film\t1\nbad film\t0\n"
    return {"SST-2/train.tsv": head + good * 20 + row, "SST-2/dev.tsv": head + good}


def stsb(row: str) -> dict[str, str]:
    good = '"un gato, negro",un gato,3.5\r\n' * 12
    return {f"{part}.csv": good + row for part in ("train", "dev", "test")}


FUNCTIONS = [f"def f{i}(x):\n    if x:\n        return {i}\n    return 0\n" for i in range(300)]
INDENTED = has("def f7(x):\n    if x:\n        return 7\n    return 0")
TABLE = "id,text\n" + "".join(f'{i},"{text}"\n' for i, text in enumerate(LINES))
BOTH = {"a.TXT": "\n".join(LINES[:200]), "b.ndjson": rows(values=LINES[200:])}
TWICE = {f"SST-2/{p}.tsv": "sentence\tlabel\tlabel\nso\t1\t0\n" for p in ("train", "dev")}
ASKED = mmlu("Is it?,a,b,c,d,A")
PACKED = {f"{name}.gz": gzip.compress(text.encode()) for name, text in ASKED.items()}
WIDE, LATIN = "x" * 140_000, {"test/l_test.csv": "¿Sí?,a,b,c,d,A\n".encode("latin1")}
#: Name, kind, contents or files of a folder, what the one line says (None: it is read), what was
#: read (None: it is refused). Where both are there, either is right.
CASES: list[tuple[str, str, Any, str | None, Check]] = [
    ("lines.json", "text", rows(), None, same),
    ("lines.JSONL", "text", rows(), None, same),
    ("list.json", "text", json.dumps([{"text": text} for text in LINES]), None, same),
    ("table.csv", "text", TABLE, None, same),
    ("table.xml", "text", f"<p>{TEXT}</p>", r"table\.xml.*\.txt", None),
    ("folder", "text", BOTH, None, same),
    ("indent.txt", "text", "".join(FUNCTIONS), None, INDENTED),
    ("bom.jsonl", "text", "\ufeff" + rows(), None, same),
    ("u2028.jsonl", "text", rows('{"text": "a\u2028b\u0085c"}'), None, has("a\u2028b\u0085c")),
    ("surrogate.jsonl", "text", rows('{"text": "a \\ud83d b"}'), None, has("a ", " b")),
    ("null.jsonl", "text", rows('{"text": null}'), r"null\.jsonl.*\b51\b.*text", None),
    ("big.jsonl", "text", rows(f'{{"text": "a", "n": {BIG}}}'), r"big\.jsonl.*\b51\b", None),
    ("deep.jsonl", "text", rows(f'{{"text": {DEEP}'), r"deep\.jsonl.*\b51\b", None),
    ("flipped.parquet", "text", parquet(), r"flipped\.parquet", None),
    ("twice.jsonl", "text", rows('{"text": "a", "text": "b"}'), r"\b51\b.*text twice", None),
    ("twice.parquet", "text", parquet(False, 2), r"several columns text", None),
    ("twice", "sst2", TWICE, r"(train|dev)\.tsv names several columns label", None),
    ("no question", "mmlu", mmlu(",a,b,c,d,A"), r"logic_test\.csv: row 1\b", None),
    ("of a Mac", "mmlu", ASKED | {"test/._logic_test.csv": b"\0\5"}, None, count(2)),
    ("packed", "mmlu", PACKED, None, count(2)),
    ("packed twice", "mmlu", ASKED | PACKED, r"second file of logic", None),
    ("broken.jsonl", "instruct", in_lines()[:-3], r"(record|line) 30\b", None),
    ("dict.json", "instruct", json.dumps(records(input={"x": 1})), r"record 8\b.*input", None),
    ("null.json", "instruct", json.dumps(records(output=None)), r"record 8\b.*output", None),
    ("asks.json", "instruct", json.dumps(records(instruction=None)), r"record 8\b.*instr", None),
    ("number.json", "instruct", json.dumps(records(output=42)), r"record 8\b.*output", None),
    ("half.json", "instruct", json.dumps(records(output="cut \ud83d")), r"record 8\b", has("cut ")),
    ("u2028.jsonl", "instruct", in_lines(output="a\u2028b"), None, has("a\u2028b")),
    ("empty answer", "mmlu", mmlu("Is it?,a,b,c,d,"), r"logic_test\.csv: row 1\b", None),
    ("two letters", "mmlu", mmlu("Is it?,a,b,c,d,BC"), r"logic_test\.csv: row 1\b", None),
    ("bom", "mmlu", mmlu("\ufeffIs it?,a,b,c,d,A"), None, lambda texts: texts[0][:2] == "Is"),
    ("latin1", "mmlu", LATIN, r"l_test\.csv", None),
    ("wide", "mmlu", mmlu(f"{WIDE},a,b,c,d,A"), r"logic_test\.csv", has(WIDE)),
    ("minus one", "sst2", sst2("no label\t-1\n"), r"train\.tsv.*\b42\b", count(40)),
    ("minus one", "stsb", stsb("a,b,-1\r\n"), r"(train|dev)\.csv.*\b13\b", count(12)),
    ("bom.txt", "prompts", "\ufeffThe one\nA list\n", None, lambda t: t == ["The one", "A list"]),
    ("u2028.txt", "prompts", "a\u2028b\n", None, lambda texts: texts == ["a\u2028b"]),
]
#: By kind: arguments of `train` that take the file.
WORDS = {
    "text": "task=mlm data=text",
    "instruct": "task=instruct mixer=delta position=none data=instruct",
    "sst2": "preset=finetune data=glue data.task=sst2",
    "stsb": "preset=finetune data=es_glue data.task=stsb_es",
}
TINY = "model.dim=16 model.depth=1 model.heads=2 model.max_len=32 logger=none trainer.max_steps=2"
TINY += " trainer.accelerator=cpu trainer.progress=none trainer.val_check_interval=2"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run in an empty folder, which stays so."""
    monkeypatch.setenv("CHIMERA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path / "runs"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


@pytest.mark.parametrize("trains", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", CASES, ids=[f"{kind}-{name}" for name, kind, *_ in CASES])
def test_a_file_is_read_or_refused(case: Any, trains: bool, tmp_path: Path) -> None:
    name, kind, contents, says, holds = case
    place, texts = make(tmp_path / "in" / name, contents), list[str]()
    if not trains:
        code, said, texts = read(kind, place)
    elif kind in WORDS:
        words = [*WORDS[kind].split(), *TINY.split(), "tokenizer=word", "data.batch_size=4"]
        words += [f"data.path={place}", f"run_dir={tmp_path}/run"]
        code, said = outcome(lambda: train.main(words), 120)
    else:
        pytest.skip("no file of a training command")
    if code == 0 and holds:
        assert trains or (holds(texts) and "".join(texts).encode()), texts[:3]
    else:
        assert re.search(says or "it is read", one_refusal(code, said)), said
        assert not (tmp_path / "run").exists()
    assert os.listdir(".") == []


@pytest.mark.slow
def test_a_batch_with_nothing_to_predict_counts_for_nothing(tmp_path: Path) -> None:
    crabs = " ".join(["🦀🪿🫨"] * 3000)
    make(tmp_path / "crabs.txt", "\n".join([*LINES[:200], crabs, *LINES[200:]]))
    words = ["data=text", f"data.path={tmp_path}/crabs.txt", "data.batch_size=1", "data.seq_len=32"]
    words += ["tokenizer=bert", f"tokenizer.path={bert_vocabulary(tmp_path)}", *TINY.split()]
    code, said = outcome(lambda: train.main([*words, "trainer.max_steps=600"]), 300)
    assert code == 0, said


def loop(place: Path) -> str:
    """A pattern over a folder with two links to itself."""
    make(place / "a.txt", TEXT)
    for name in ("x", "y"):
        (place / name).symlink_to(place)
    return f"{place}/**/*.txt"


def pipe(place: Path) -> str:
    os.mkfifo(place)
    return str(place)


def piped(place: Path) -> str:
    """A finished run whose step log and record are pipes."""
    run = a_run(place, ["scale=smoke", "mixer=retnet"])
    for name in ("steps.csv", "run.json"):
        (run / name).unlink()
        pipe(run / name)
    return str(run)


#: Commands with long names, values of a wrong kind, and links and pipes in place of a file.
PLACES = "show init_from=LONG|show run_dir=LONG|show task.teacher=LONG|clean LONG|compare LONG"
PLACES += "|show data=glue data.path=LONG|show data=instruct task=instruct data.path=LONG"
PLACES += (
    "|show data=text data.path=LONG|show ckpt_path=LONG|show tokenizer=own tokenizer.path=LONG"
)
PLACES += "|train replay=LONG|show --config-dir=LONG|show init_from=hf:LONG|export to=x run=LONG"
PLACES += f"|eval run=LONG|records add LONG|show seed={BIG}|show model.dim=???|show ckpt_path=3"
PLACES += "|show init_from=nan|show init_from=[1]|show task.teacher=3|show mixer._partial_=false"
PLACES += "|show adapter=lora adapter._partial_=false|show mixer._target_=7|show data._target_=7"
PLACES += "|show callbacks.files._target_={}|show optim._target_={}|show data=text data.path=PIPE"
PLACES += "|compare ~no_user/x|export run=x to=~no_user|eval run=~no_user|train replay=~no_user"
PLACES += '|show --config-dir=~no_user|show run_dir="~no_user/x"|show data=text data.path="~no_one"'
PLACES += "|show data=text data.path=LOOP|compare RUN|train scale=smoke mixer=retnet run_dir=RUN"
MAKERS: Any = {"LONG": lambda _: "a" * 300, "PIPE": pipe, "LOOP": loop, "RUN": piped}


@pytest.mark.parametrize("words", PLACES.split("|"))
def test_places_are_used_or_refused(words: str, tmp_path: Path) -> None:
    for name in set(MAKERS) & set(re.findall("[A-Z]+", words)):
        words = words.replace(name, MAKERS[name](tmp_path / "place"))
    code, said = outcome(lambda: main(words.split()))
    assert code == 0 or one_refusal(code, said)
    assert os.listdir(".") == []


def test_the_home_is_named_and_each_argument_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert RunDir.of({"run_dir": "~/run"}).path == Path("/home/me/run")
    said = one_refusal(*outcome(lambda: export(["run=a", "to=b", "to=c"])))
    assert "to= is there twice" in said


@pytest.mark.parametrize("words", ["show x=NAME", "compare NAME", "eval run=NAME", "list NAME"])
@pytest.mark.parametrize("where", ["argument", "CHIMERA_RUNS", "HOME", "folder"])
def test_a_name_that_is_not_utf8_is_refused(
    words: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run's files could not hold it."""
    name = os.fsdecode(bytes(tmp_path) + b"/na\xffme")
    if where == "folder":
        Path(name).mkdir()
        monkeypatch.chdir(name)
    elif where != "argument":
        monkeypatch.setenv(where, name)
    words = words.replace("NAME", name if where == "argument" else "x")
    assert "na?me is not UTF-8" in one_refusal(*outcome(lambda: main(words.split())))


@pytest.mark.parametrize("name", [b"\x1b[31m", b"na\xffme"])
def test_names_in_a_folder_are_shown_as_plain_text(name: bytes, tmp_path: Path) -> None:
    run = a_run(tmp_path / "runs", ["scale=smoke", "mixer=retnet"])
    run.rename(os.fsdecode(bytes(run.parent) + b"/" + name))
    for words in ("compare", "clean stale=1", "records add", "doctor"):
        out = io.TextIOWrapper(io.BytesIO(), "utf-8")
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            assert main(words.split()) == 0, words
        out.flush()
        assert b"\x1b" not in cast(io.BytesIO, out.buffer).getvalue(), words


def test_an_export_replaces_only_its_own(tmp_path: Path) -> None:
    """A folder with other files, or with one of an export changed since, is refused and kept."""
    make(tmp_path / "text.txt", safe.TEXT * 100)
    assert train.main(safe.line(tmp_path, f"run_dir={tmp_path}/run")) == 0
    words = [f"run={tmp_path}/run", f"to={tmp_path}/out"]
    assert export(words) == export(words) == 0
    for name in ("notes.txt", ".git/HEAD", "model.safetensors"):
        file = make(tmp_path / "out" / name, "mine")
        one_refusal(*outcome(lambda: export(words)))
        assert file.read_text() == "mine"
        assert (tmp_path / "out/config.json").is_file()
        file.unlink()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    one_refusal(*outcome(lambda: export([words[0], f"to={tmp_path}/link"])))


#: Command lines, and files, of one test.
SIZE = 50
ODD = ["0", "-1", "1e999", "nan", "null", "true", "", "[]", "{}", "{a:1}", "[1,2]", "x" * 300, "~"]
ODD += ["${oc.env:HOME}", "${optim.lr}", "\udcff", "'", "[" * 50, "../x", "/dev/null", "1e-3", "7"]
ODD += ["2024-13-45", "a b", "a=b", "\x1b[31m", "9" * 5000, "0x10", "1_000", "-0.0", "???", "é"]
FIRST = ["show", "show format=json", "train --cfg job", "train --info config"]


def typo(word: str, draw: random.Random) -> str:
    """The word, now and then with one letter gone, doubled or changed."""
    if draw.random() > 0.15:
        return word
    at = draw.randrange(len(word))
    return word[:at] + draw.choice(["", word[at] * 2, draw.choice("aeiou_.=-+~")]) + word[at + 1 :]


def command_line(draw: random.Random, keys: list[str]) -> list[str]:
    """Some groups with a choice and some keys with a value, from the configuration."""
    choices = {g: sorted(c) for g, c in groups().items() if c and "/" not in g}
    named = draw.sample(sorted(choices), draw.randrange(4))
    words = [f"{typo(g, draw)}={typo(draw.choice(choices[g]), draw)}" for g in named]
    for key in draw.sample(keys, draw.randrange(4)):
        value = draw.choice(ODD) if draw.random() < 0.8 else draw.choice(keys)
        words.append(f"{draw.choice(['', '', '', '+', '++', '~'])}{typo(key, draw)}={value}")
    draw.shuffle(words)
    return [*draw.choice(FIRST).split(), *words]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_command_lines(seed: int) -> None:
    draw, wrong = random.Random(seed), list[str]()
    keys = sorted({key for key, _ in dotted.walk(plain(compose([])))})
    for _ in range(SIZE):
        argv = command_line(draw, keys)
        code, said = outcome(lambda argv=argv: main(argv), 60)
        errors = sum(text.startswith("error: ") for text in said.split("\n"))
        if code not in (0, 2) or errors != (code == 2) or "\x1b" in said:
            wrong.append(f"{code} {[word[:80] for word in argv]} {said[-600:]}")
    assert not wrong, "\n\n".join(wrong)
    assert os.listdir(".") == []


def test_a_class_that_is_none() -> None:
    """Each node of a run, with what cannot be called, or may not be called for a file."""
    wrong = ("''", ".", "a", "${optim.lr}", "3", "[a]", "os.system", "chimera.nothing")
    keys = [key for key, _ in dotted.walk(plain(compose([]))) if key.endswith("._target_")]
    for count, key in enumerate(sorted(keys)):
        if key != "scale._target_":  # a scale's node is read, and never built
            code, said = outcome(
                partial(main, ["show", f"++{key}={wrong[count % len(wrong)]}"]), 60
            )
            assert (code, said.count("error: ")) == (2, 1), said


def sound(kind: str, name: str) -> dict[str, Any]:
    """The files of a sound folder of a kind."""
    folders = {"mmlu": mmlu("Is it?,a,b,c,d,A"), "sst2": sst2("so\t1\n"), "stsb": stsb("a,b,1\r\n")}
    if kind in folders:
        return {file: content.encode() for file, content in folders[kind].items()}
    if name.endswith(".parquet"):
        return {name: parquet(flip=False)}
    values = records() if kind == "instruct" else [{"text": text} for text in LINES]
    forms = {"txt": "\n\n".join(LINES), "json": json.dumps(values), "csv": "text\n" + TEXT}
    text = forms.get(name.split(".")[1], "\n".join(map(json.dumps, values))).encode()
    return {name: PACK.get(name[-3:], bytes)(text)}


PACK: dict[str, Any] = {".gz": gzip.compress, "zst": partial(pyarrow.compress, codec="zstd")}
TEXTS = "a.txt a.jsonl a.parquet a.txt.gz a.json.gz a.jsonl.zst a.json a.csv a.JSONL"
NAMES = {"text": TEXTS.split(), "instruct": ["a.json", "a.jsonl"], "prompts": ["a.txt"]}
PIECES = [b"\0", b"\\ud83d", b"\xff\xfe", b"1" * 5000, b"[" * 200_000, b'"', b"\n\n\n", b"null"]
PIECES += [b"x" * 140_000, b"\r", b"\t" * 9, b"{}", b"\xed\xa0\xbd", b"-1", b"NaN", b",,,,,,"]
PIECES += [text.encode() for text in ("\ufeff", "\u2028", "\u0085", "\x1b[31m")]


def damaged(content: bytes, draw: random.Random) -> bytes:
    """Bits flipped, an end cut off, something put in or taken out."""
    made = bytearray(content)
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(len(made) + 1)
        until = at + draw.choice([0, 0, draw.randrange(200), len(made)])
        made[at:until] = draw.choice([b"", *PIECES]) if draw.random() < 0.7 else made[at:until]
        for place in draw.sample(range(len(made)), min(draw.choice([0, 8]), len(made))):
            made[place] ^= 1 << draw.randrange(8)
    return bytes(made)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_damaged_files(seed: int, tmp_path: Path) -> None:
    draw, wrong = random.Random(seed), list[str]()
    for number in range(SIZE):
        kind = draw.choice([*READERS, "text", "text", "text", "instruct"])
        name = draw.choice(NAMES.get(kind, [""]))
        files = sound(kind, name)
        victim = draw.choice(sorted(files))
        files[victim] = damaged(files[victim], draw)
        if name and draw.random() < 0.2:
            files = {f"a{Path(draw.choice(NAMES['text'])).suffix}": files[victim]}
        place = make(tmp_path / f"in{number}", files)
        code, said, _ = read(kind, place / next(iter(files)) if name else place)
        if code not in (0, 2) or said.count("error: ") != (code == 2):
            wrong.append(f"{kind} {sorted(files)} {number}: {code} {said[-500:]}")
        assert {str(f.relative_to(place)) for f in place.rglob("*") if f.is_file()} == set(files)
    assert not wrong, "\n\n".join(wrong)
    assert os.listdir(".") == []
