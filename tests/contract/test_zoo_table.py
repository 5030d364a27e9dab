"""README's tables of components are up to date."""

from __future__ import annotations

from chimera.contract_tests import zoo
from chimera.model.catalog import GROUPS, markdown, rows
from chimera.paths import ROOT


def test_readme_has_the_tables_of_the_code() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert markdown() in text, "run `make zoo`"


def test_every_component_says_what_it_is_and_where_it_is_from() -> None:
    for group in GROUPS:
        found = rows(group)
        assert [row.name for row in found] == zoo.names(group)
        assert all(len(row.what) > 10 for row in found)
    assert all(row.source and row.forms and row.cost for row in rows("mixer"))
