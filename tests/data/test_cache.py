"""Cache entries are whole, made once, and made again when damaged."""

import errno
import json
import logging
import os
import pickle
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from chimera.data.encode.packing import PackedTokens, dtype, pack
from chimera.data.source import cache
from chimera.data.source.cache import (
    MANIFEST,
    entry,
    file_fingerprint,
    file_fingerprints,
    sha256_of,
)
from chimera.errors import UnavailableError, UserError
from tests.data.kit import Listed, Numbers, packed


class Build:
    """Counts how often it is called."""

    def __init__(self, fail: bool = False) -> None:
        self.calls, self.fail = 0, fail
        self.started = threading.Event()

    def __call__(self, folder: Path) -> dict[str, int]:
        self.calls += 1
        self.started.set()
        (folder / "data.bin").write_bytes(b"12345678")
        time.sleep(0.02)
        if self.fail:
            raise KeyboardInterrupt
        return {"call": self.calls}


def test_made_once(tmp_path: Path) -> None:
    build = Build()
    place, facts = entry(tmp_path, "kind", "key", build)
    assert (place / "data.bin").read_bytes() == b"12345678"
    assert entry(tmp_path, "kind", "key", build) == (place, facts) == (place, {"call": 1})
    assert entry(tmp_path, "kind", "other", build)[1] == {"call": 2}


@pytest.mark.parametrize("damage", ["flipped bit", "truncated", "file gone", "manifest"])
def test_damage_is_found_and_mended(tmp_path: Path, damage: str, caplog) -> None:
    build = Build()
    place, _ = entry(tmp_path, "kind", "key", build)
    file = place / "data.bin"
    if damage == "flipped bit":
        file.write_bytes(b"12345679")
    elif damage == "truncated":
        file.write_bytes(b"1234")
    elif damage == "file gone":
        file.unlink()
    else:
        (place / MANIFEST).write_text("{")
    assert entry(tmp_path, "kind", "key", build) == (place, {"call": 2})
    assert file.read_bytes() == b"12345678"
    assert "is damaged; it is built again" in caplog.text


def test_an_interrupted_build_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        entry(tmp_path, "kind", "key", Build(fail=True))
    assert [f.name for f in (tmp_path / "kind").iterdir() if f.suffix != ".lock"] == []
    (tmp_path / "kind" / ".key.killed").mkdir()
    assert entry(tmp_path, "kind", "key", Build())[1] == {"call": 1}
    names = {f.name for f in (tmp_path / "kind").iterdir() if f.suffix != ".lock"}
    assert names == {"key"}


def test_made_once_by_many_at_the_same_time(tmp_path: Path) -> None:
    build = Build()
    found: list[dict[str, int]] = []
    threads = [
        threading.Thread(target=lambda: found.append(entry(tmp_path, "kind", "key", build)[1]))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [{"call": 1}] * 6


def test_entries_can_be_shared(tmp_path: Path, monkeypatch) -> None:
    """The umask says who reads entries; a cache that cannot be written to serves what it has."""
    before = os.umask(0o022)
    place, _ = entry(tmp_path, "kind", "key", Build())
    os.umask(before)
    assert [p.stat().st_mode & 0o777 for p in (place, place / MANIFEST)] == [0o755, 0o644]
    for number in (errno.EROFS, errno.EACCES):
        error = OSError(number, os.strerror(number))
        monkeypatch.setattr(Path, "mkdir", Mock(side_effect=error))
        assert entry(tmp_path, "kind", "key", Build())[0] == place
        said = rf"data.cache_dir=.* cannot be written to \({error.strerror}\)"
        for folder in (tmp_path, tmp_path / "new"):
            with pytest.raises(UserError, match=said):
                entry(folder, "kind", "other", Build())


def test_an_entry_that_is_less_than_its_facts_is_made_again(tmp_path: Path) -> None:
    build = Build()
    entry(tmp_path, "kind", "key", build)
    check = lambda folder, facts: facts["call"] > 1  # noqa: E731
    assert entry(tmp_path, "kind", "key", build, check=check)[1] == {"call": 2}
    place, _ = entry(tmp_path, "kind", "key", build, check=check)
    monkeyed = np.fromfile(place / "data.bin", np.uint8)[::-1]
    stat = (place / "data.bin").stat()
    monkeyed.tofile(place / "data.bin")
    os.utime(place / "data.bin", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert cache.damaged(tmp_path) == [place]


@pytest.mark.parametrize("noted", ["[]", "null", "{", '{"a": 1}', '{"a": [1, 2]}'])
def test_foreign_notes_of_fingerprints_are_not_used(tmp_path: Path, noted: str) -> None:
    (tmp_path / "a").write_text("a")
    found = file_fingerprints([tmp_path / "a"], tmp_path / "cache")
    (note,) = (tmp_path / "cache/fingerprints").iterdir()
    note.write_text(noted.replace('"a"', json.dumps(str(tmp_path / "a"))))
    assert file_fingerprints([tmp_path / "a"], tmp_path / "cache") == found


@pytest.mark.parametrize(("size", "kept"), [(1 << 16, "<u2"), ((1 << 16) + 1, "<u4")])
def test_ids_take_as_little_as_they_can(tmp_path: Path, size: int, kept: str) -> None:
    tokenizer = Numbers(size)
    assert dtype(tokenizer) == kept
    pack(tmp_path, Listed({"train": [str(size - 1)]}), tokenizer)
    assert PackedTokens((tmp_path / "train.bin",), kept).ids.tolist() == [size - 1, 3]


def test_workers_are_sent_the_file_and_not_its_contents(tmp_path: Path) -> None:
    tokens = packed(tmp_path, np.arange(10_000))
    assert tokens.ids[7] == 7
    sent = pickle.dumps(tokens)
    assert len(sent) < 1000
    np.testing.assert_array_equal(pickle.loads(sent).ids, tokens.ids)


def test_unchanged_large_files_are_not_hashed_again(tmp_path: Path, monkeypatch) -> None:
    build = Build()
    place, facts = entry(tmp_path, "kind", "key", build)
    hashed: list[str] = []

    def digest(file: Path) -> str:
        hashed.append(file.name)
        return sha256_of(file)

    monkeypatch.setattr(cache, "sha256_of", digest)
    assert entry(tmp_path, "kind", "key", build) == (place, facts)
    assert hashed == ["data.bin"]
    hashed.clear()
    monkeypatch.setattr(cache, "_SMALL", 7)
    assert entry(tmp_path, "kind", "key", build) == (place, facts)
    assert hashed == []
    (place / "data.bin").touch()
    assert entry(tmp_path, "kind", "key", build) == (place, facts)
    assert hashed == ["data.bin"]


def test_what_an_interrupted_build_left_is_given_to_the_next(tmp_path: Path) -> None:
    def build(folder: Path) -> dict[str, bool]:
        found = (folder / "data.bin").exists()
        (folder / "data.bin").write_bytes(b"1")
        if not found:
            raise KeyboardInterrupt
        return {"found": found}

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            entry(tmp_path, "kind", "key", build)
    with pytest.raises(KeyboardInterrupt):
        entry(tmp_path, "kind", "key", build, resume=True)
    assert entry(tmp_path, "kind", "key", build, resume=True)[1] == {"found": True}


@pytest.mark.parametrize(("error", "kept"), [(UserError, False), (UnavailableError, True)])
def test_a_refused_text_leaves_nothing_and_a_lost_connection_what_it_fetched(
    tmp_path: Path, error: type[UserError], kept: bool
) -> None:
    def build(folder: Path) -> dict[str, bool]:
        (folder / "data.bin").write_bytes(b"1")
        raise error("no text")

    with pytest.raises(error):
        entry(tmp_path, "kind", "key", build, resume=True)
    assert (tmp_path / "kind/.key.partial").exists() == kept


def test_a_process_that_waits_for_another_says_so(tmp_path: Path, caplog, monkeypatch) -> None:
    caplog.set_level(logging.INFO, logger="chimera")
    monkeypatch.setattr(cache, "_PATIENCE", 0.01)
    build = Build()
    first = threading.Thread(target=entry, args=(tmp_path, "kind", "key", build))
    first.start()
    build.started.wait()
    assert entry(tmp_path, "kind", "key", build)[1] == {"call": 1}
    first.join()
    assert f"another process prepares {tmp_path / 'kind' / 'key'}" in caplog.text


def test_fingerprints_are_noted_by_size_and_time(tmp_path: Path, monkeypatch) -> None:
    files = [tmp_path / name for name in ("a", "b")]
    for file in files:
        file.write_text(file.name)
        os.utime(file, (1e9, 1e9))
    first = file_fingerprints(files, tmp_path / "cache")
    assert first == [file_fingerprint(file) for file in files]
    read = []
    monkeypatch.setattr(cache, "file_fingerprint", lambda file: read.append(file.name) or "new")
    assert file_fingerprints(files, tmp_path / "cache") == first
    files[1].write_text("c")
    assert file_fingerprints(files, tmp_path / "cache") == [first[0], "new"]
    assert file_fingerprints(files, tmp_path / "cache") == [first[0], "new"]
    assert read == ["b", "b"]  # changed just now: it may change again within the clock's step
    (tmp_path / "no").write_text("a file where the cache should be")
    assert file_fingerprints(files[:1], tmp_path / "no") == ["new"]
