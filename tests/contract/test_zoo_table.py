"""Tables of components in docs/reference/zoo.md and names in README.md are up to date."""

from __future__ import annotations

from chimera.contract_tests import zoo
from chimera.model.catalog import GROUPS, markdown, names, rows
from chimera.paths import ROOT


def test_the_documents_have_the_components_of_the_code() -> None:
    zoo_page = (ROOT / "docs/reference/zoo.md").read_text(encoding="utf-8")
    assert markdown() in zoo_page, "run `make zoo`"
    assert names() in (ROOT / "README.md").read_text(encoding="utf-8"), "run `make zoo`"


def test_every_component_says_what_it_is_and_where_it_is_from() -> None:
    for group in GROUPS:
        found = rows(group)
        assert [row.name for row in found] == zoo.names(group)
        assert all(len(row.what) > 10 for row in found)
    assert all(row.source and row.forms and row.cost for row in rows("mixer"))
