"""Dividing, completing and bounding documents."""

from pathlib import Path

import pytest

from chimera.data.source.cache import file_fingerprint
from chimera.data.source.splits import bounded, divided, shares_of
from chimera.errors import UserError
from tests.data.kit import divide, sentences


def test_shares_are_about_90_5_5_by_text() -> None:
    documents = sentences(2000)
    splits = divide(documents)
    total = sum(map(len, documents))
    size = {split: sum(map(len, texts)) / total for split, texts in splits.items()}
    assert size["valid"] == pytest.approx(0.05, abs=0.002)
    assert size["test"] == pytest.approx(0.05, abs=0.002)
    assert sorted(t for texts in splits.values() for t in texts) == sorted(documents)


def test_division_depends_on_texts_and_not_on_their_order() -> None:
    documents = sentences(100)
    first, second = divide(documents), divide(documents[::-1])
    assert {s: set(t) for s, t in first.items()} == {s: set(t) for s, t in second.items()}


def test_a_long_document_does_not_overfill_a_small_split() -> None:
    for seed in range(20):
        documents = [*sentences(60, seed), "long " * 4000]
        splits = divide(documents)
        total = sum(map(len, documents))
        for split in ("valid", "test"):
            assert 0 < sum(map(len, splits[split])) < 0.08 * total


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_few_documents_still_fill_every_split(count: int) -> None:
    documents = sentences(count)
    splits = divide(documents)
    assert all(splits.values())
    words = sorted(w for texts in splits.values() for text in texts for w in text.split())
    assert words == sorted(w for text in documents for w in text.split())


def test_hardly_any_text_is_refused() -> None:
    with pytest.raises(UserError, match="too few to divide"):
        divide(["word"])


def test_missing_splits_are_taken_from_train_or_from_valid() -> None:
    documents = sentences(60)
    only_test_missing = divided({"train": [documents], "valid": [["v"]]}, "here")
    assert only_test_missing["valid"] == ["v"]
    assert set(only_test_missing["train"]) | set(only_test_missing["test"]) == set(documents)
    no_train = divided({"valid": [documents], "test": [["t"]]}, "here")
    assert no_train["test"] == ["t"]
    assert len(no_train["train"]) > 10 * len(no_train["valid"]) > 0
    with pytest.raises(UserError, match="here holds no text"):
        divided({"train": [[]]}, "here")


def test_shares_of_what_is_there_add_up() -> None:
    assert shares_of(["train"]) == pytest.approx({"train": 1.0})
    assert shares_of(["valid", "test"]) == pytest.approx({"valid": 0.95, "test": 0.05})
    assert sum(shares_of(["train", "valid", "test"]).values()) == pytest.approx(1.0)


def test_bound_cuts_the_last_document_at_a_blank() -> None:
    assert [*bounded(["año nuevo", "vida nueva"], None)] == ["año nuevo", "vida nueva"]
    assert [*bounded(["año nuevo", "vida nueva"], 17)] == ["año nuevo", "vida"]
    assert [*bounded(["ñandú"], 3)] == ["ña"]
    assert [*bounded(["a b"], 0)] == []


def test_fingerprint_of_a_large_file_looks_at_both_ends(tmp_path: Path) -> None:
    file = tmp_path / "large"
    content = bytearray(200_000)
    seen = set()
    for place in (0, 199_999):
        content[place] = 1
        file.write_bytes(content)
        seen |= {file_fingerprint(file, whole=1000), file_fingerprint(file)}
    assert len(seen) == 4
