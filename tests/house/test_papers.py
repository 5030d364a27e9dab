"""docs/evidence/papers.md: no table, figure or claim without a row, and no state without a reason.

A row's state is held against the committed report that it links; its cost against the list of what
was not run; its command is composed.
"""

from __future__ import annotations

import itertools
import re
import shlex
from importlib.util import find_spec

import evidence
import pandas as pd
import pytest
from tools.execute_evidence import FOLDER

from chimera.config.compose import compose, plain
from chimera.config.groups import groups
from chimera.config.tables import computed_tables, load, tables
from chimera.paths import ROOT
from chimera.report.stats import paired
from tests.house.test_docs import DOCS

PAGE = DOCS / "evidence" / "papers.md"
TEXT = PAGE.read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S))
#: Of each section of a paper: its tables, figures and algorithms, whose numbers begin at 1.
NUMBERED = {
    "TITAN and TORM": {"Table": 9, "Figure": 5, "TORM Figure": 6, "Algorithm": 3},
    "TPTT": {"Table": 3, "Figure": 2, "Algorithm": 1},
    "QDYT": {},
    "SAIDL": {"Table": 16, "Figure": 11},
}
#: Parts of QDYT's experiments, which have no numbered tables, and results that TITAN numbers apart.
PARTS = {
    "QDYT": ["4.2", *(f"4.3 ({n})" for n in range(1, 5)), "4.4"],
    "TITAN and TORM": [
        *(f"Theorem {n}" for n in ("2.2", "4.2", "9.1")),
        *(f"Proposition {n}" for n in ("4.1", "5.2", "6.1", "7.1")),
        *("Lemma 4.3", "eq. 53", "abstract", "11.1.3", "11.3.1", "11.3.2"),
    ],
}
PAIR = r"`(\w+)` ([<>=]) (`\w+`(?:, `\w+`)*)"
REPORT = re.compile(r"\]\([./]*experiments/([\w/]+)/results/(\w+)/report\.md\)")
#: A link to a test, by its name.
TEST = re.compile(r"\[([\w ]+)\]\(\.\./\.\./(tests/[\w/]+\.py)\)")
#: A number in words: no id such as E10, no section such as 11.3.2, no cost in core-hours.
NUMBER = re.compile(r"(?<![\w.,])\d+(?:\.\d+)?(?![\w,]|\.\d| core-hours)")
STATES = ("reproduced", "contradicted", "open", "not run")


def rows(section: str) -> list[list[str]]:
    """Cells of the section's table."""
    lines = [line for line in SECTIONS[section].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r" \| ", line.strip("| "))] for line in lines[2:]]


ROWS = [(section, *cells) for section in NUMBERED for cells in rows(section)]
COMMANDS = sorted({
    code
    for code in re.findall(r"`([^`\n]+)`", TEXT)
    if code.split()[0] in ("make", "chimera", "python") or re.match(r"[a-z_.]+=[\w.]+( |$)", code)
})  # fmt: skip


def numbers(kind: str, places: list[str]) -> set[int]:
    """The numbers that places such as `Tables 8, 9; Figure 9` name of a kind."""
    found: set[int] = set()
    for place in places:
        for part in re.split(r"; ", place):
            named = re.match(rf"{kind}s? ([\d, –]+)", part)
            for first, last in re.findall(r"(\d+)(?:–(\d+))?", named[1]) if named else ():
                found |= {*range(int(first), int(last or first) + 1)}
    return found


@pytest.mark.parametrize("section", NUMBERED)
def test_every_numbered_thing_of_a_paper_has_a_row(section: str) -> None:
    places = [place for name, place, *_ in ROWS if name == section]
    for kind, last in NUMBERED[section].items():
        assert numbers(kind, places) == {*range(1, last + 1)}, kind
    for part in PARTS.get(section, []):
        assert any(re.search(rf"{re.escape(part)}(?![\d.])", place) for place in places), part


def test_every_row_has_four_cells_and_a_state() -> None:
    assert len(ROWS) > 100
    for section, place, said, command, state in ROWS:
        assert said, (section, place)
        assert "`" in command or TEST.search(command), (section, place)
        words = set(re.findall(r"\*\*([^*]+)\*\*", state))
        assert words <= {*STATES}, (section, place)
        assert words or re.search(r"\bours\b|offered|E\d", state), (section, place)


def test_every_table_of_experiments_is_named() -> None:
    named = {*re.findall(r"(?:make table T=|chimera table )([\w/]+)", TEXT)}
    assert {*tables(), *computed_tables()} == named


def claimed(cell: str) -> list[tuple[str, str, str, str]]:
    """Pairs of rows in a cell, each with the state that stands before it."""
    found, state = [], ""
    for word, first, sign, others in re.findall(rf"\*\*([^*]+)\*\*|{PAIR}", cell):
        state = word or state
        found += [(state, first, sign, other) for other in re.findall(r"\w+", others)]
    return found


PAIRS = [
    (place, *REPORT.findall(state)[:1], *one)
    for _, place, _, _, state in ROWS
    for one in claimed(state)
]


@pytest.mark.parametrize(
    ("place", "linked", "state", "first", "sign", "second"),
    PAIRS,
    ids=[f"{linked[0]}: {a} {sign} {b}" for _, linked, _, a, sign, b in PAIRS],
)
def test_a_state_is_what_the_report_says(
    place: str, linked: tuple[str, str], state: str, first: str, sign: str, second: str
) -> None:
    of = evidence.report(linked[0])
    assert of is not None
    assert of.scale == linked[1], place
    log = evidence.nats(of.table.metric)
    values = [{seed: log(v) for seed, v in of.values(row).items()} for row in (first, second)]
    gap = paired(*values)
    assert gap is not None
    assert gap.interval is not None
    low, high = gap.interval if sign != ">" else (-gap.interval[1], -gap.interval[0])
    if sign == "=":
        assert state == ("reproduced" if low <= 0 <= high else "contradicted"), gap
    else:
        assert state == ("reproduced" if high < 0 else "contradicted" if low > 0 else "open"), gap


def test_numbers_are_those_of_the_linked_reports() -> None:
    compared = 0
    for _, place, _, _, state in ROWS:
        files = re.findall(r"\]\(\.\./\.\./(experiments/[^)#]+\.md)", state)
        told = re.sub(r"`[^`]*`|\]\([^)]*\)", "", state)
        known = [
            float(n) for file in files for n in NUMBER.findall((ROOT / file).read_text("utf-8"))
        ]
        for number in NUMBER.findall(told) if files else ():
            decimals = len(number.partition(".")[2])
            if decimals or float(number) >= 10:
                assert any(f"{value:.{decimals}f}" == number for value in known), (place, number)
                compared += 1
    assert compared > 8


def test_claims_that_are_counted_have_a_row() -> None:
    pairs = {(linked[0], first, second) for _, linked, _, first, _, second in PAIRS}
    listed = pd.read_csv(FOLDER / "claims.csv")[["table", "row", "than"]]
    reported = [(t, a, b) for t, a, b in listed.itertuples(index=False) if evidence.complete(t)]
    assert {*reported} <= pairs


def test_what_was_not_run_has_its_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIMERA_RECORDS", str(ROOT / "experiments"))
    left = evidence.not_run().set_index("what")["hours"]
    named = {}
    for _, place, _, command, state in ROWS:
        told = re.findall(r"T=([\w/]+)|\*\*not run\*\*, ([\d.]+) core-hours", f"{command} {state}")
        for (table, _), (_, hours) in itertools.pairwise(told):
            if table and hours:
                assert hours == f"{left[table]:.1f}", place
                named[table] = hours
    assert {*left.index} & {*tables()} == {*named}
    unfinished = {path for path in tables() if not evidence.complete(path)}
    assert unfinished - {*left.index} == {"ours/small_tasks"}  # of no scale


def test_tests_have_the_names_of_their_links() -> None:
    linked = [(name, file) for name, file in TEST.findall(TEXT) if name != "all forms"]
    assert len(linked) > 40
    for name, file in linked:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert f"\ndef test_{name.replace(' ', '_')}(" in source, (name, file)


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_composes(line: str) -> None:
    words = [word for word in shlex.split(line) if word not in ("python", "chimera", "train.py")]
    if words[0] == "make":
        assert words[1] == "table"
        assert words[2].removeprefix("T=") in tables()
    elif words[0] == "table":
        assert words[1] in computed_tables()
    elif words[0] == "list":
        assert {words[1]} & {*groups(), *itertools.chain(*groups().values())}
    elif words[0] == "-m" and words[1].startswith("+"):
        table, _, rows = words[1].removeprefix("+").partition("=")
        if "/" in table:  # some of its rows
            assert {*rows.split(",")} <= {row.name for row in load(table).rows}
        else:
            assert f"{table}/{rows}" in tables()
    elif words[0] == "-m":
        assert find_spec(words[1]) is not None
    else:
        plain(compose([w for w in words if w != "show" and not w.startswith("format=")]))
