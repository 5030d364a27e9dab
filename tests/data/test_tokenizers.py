"""All kinds of tokenizers: what they promise in common, and what each is known by."""

import json
from pathlib import Path

import numpy as np
import pytest
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from chimera.data.tokenizer.base import Template, Tokenizer, load
from chimera.data.tokenizer.fast import ByteBPE, WordPiece
from chimera.data.tokenizer.sentence_piece import SentencePiece
from chimera.data.tokenizer.symbols import Symbols
from chimera.data.tokenizer.word import counted
from chimera.errors import UserError
from tests.data.kit import bert_vocabulary, gpt2_vocabulary, sentences, small_piece

TEXTS = [*sentences(20), "", "The fox [MASK] saw [PAD] <|endoftext|> <s> [SEP].", "ñandú ☃ 42"]


@pytest.fixture(params=["sentencepiece", "bert", "gpt2"])
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    settings = {
        "sentencepiece": lambda: SentencePiece(vocab_size=400, num_threads=1),
        "bert": lambda: WordPiece(path=str(bert_vocabulary(tmp_path))),
        "gpt2": lambda: ByteBPE(path=str(gpt2_vocabulary(tmp_path))),
    }[request.param]()
    settings.check()
    return settings.build(sentences(100))


def test_text_never_yields_a_special_token(tokenizer: Tokenizer) -> None:
    special = set(tokenizer.special_ids) - {tokenizer.unk_id}
    for ids in tokenizer.encode(TEXTS):
        assert ids.dtype == np.int64
        assert not special & set(ids.tolist())
        assert (ids < tokenizer.vocab_size).all()


def test_decoding_gives_the_text_back(tokenizer: Tokenizer) -> None:
    text = TEXTS[0]
    (ids,) = tokenizer.encode([text])
    framed = [tokenizer.cls_id, *ids, tokenizer.sep_id, tokenizer.pad_id]
    assert tokenizer.decode(framed).replace(" .", ".").lower() == text.lower()


def test_loads_from_its_folder_alone(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert (again.special, again.vocab_size, again.sha256) == (
        tokenizer.special,
        tokenizer.vocab_size,
        tokenizer.sha256,
    )
    for a, b in zip(tokenizer.encode(TEXTS), again.encode(TEXTS), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_decoders_text_begins_as_in_its_training() -> None:
    tokenizer = SentencePiece(vocab_size=300, num_threads=1).build(sentences(50))
    end, start = tokenizer.sep_id, tokenizer.cls_id
    cases = {  # by the template's start and end: after packed documents, and of instructions
        ((start,), (end,)): ((end,), (start,)),
        ((start,), ()): ((start,), (start,)),
        ((), ()): ((end,), ()),
    }
    for (first, last), wanted in cases.items():
        tokenizer.template = Template(first, (end,), last)
        assert (tokenizer.opening(packed=True), tokenizer.opening(packed=False)) == wanted


def test_loading_from_elsewhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no saved tokenizer"):
        load(tmp_path)
    special = dict.fromkeys(("pad", "unk", "cls", "sep", "mask"), 0)
    template = {"start": [0], "middle": [0], "end": [0]}
    for kind in ("os.system", "base.json", "base.kind_of", "base.Tokenizer", ""):
        described = {"kind": kind, "sha256": "", "special_ids": special, "template": template}
        (tmp_path / "tokenizer.json").write_text(json.dumps(described))
        with pytest.raises(UserError, match="is no tokenizer of chimera"):
            load(tmp_path)


def test_training_twice_gives_the_same_bytes() -> None:
    settings = SentencePiece(vocab_size=300, num_threads=2)
    documents = sentences(300)
    assert settings.train(documents) == settings.train(documents)


def test_too_large_a_vocabulary_shrinks_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    made = SentencePiece(vocab_size=5000, byte_fallback=False, num_threads=1).build(sentences(50))
    assert 50 < made.vocab_size < 5000
    assert f"the text gives {made.vocab_size} pieces, fewer than" in caplog.text


def test_too_small_a_vocabulary_is_refused() -> None:
    with pytest.raises(UserError, match=r"vocab_size=10 cannot be learnt .*smaller"):
        SentencePiece(vocab_size=10, num_threads=1).build(sentences(50))


def test_bytes_cover_what_the_vocabulary_does_not() -> None:
    covered = SentencePiece(vocab_size=400, num_threads=1).build(sentences(50))
    (ids,) = covered.encode(["☃"])
    assert covered.unk_id not in ids
    assert covered.decode(ids) == "☃"
    (ids,) = small_piece().build(sentences(50)).encode(["☃"])
    assert 1 in ids


def test_train_bytes_bounds_what_is_learnt_from(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(
        SentencePieceTrainer,
        "train",
        lambda sentence_iterator, **_: seen.append(list(sentence_iterator)),
    )
    documents = sentences(1000)
    SentencePiece(train_bytes=10_000).train(documents)
    assert 5_000 < sum(map(len, seen[0])) <= 11_000
    assert seen[0][0] == documents[0]
    assert seen[0][-1] in documents[-40:]
    for share in (1.1, 1.5, 3.7):  # whole distances leave half of it away at 1.1
        size = int(sum(map(len, documents)) / share)
        SentencePiece(train_bytes=size, sample="even").train(documents)
        assert sum(map(len, seen[-1])) == pytest.approx(size, rel=0.02)
        assert seen[-1][0] == documents[0]


def test_an_existing_model_gets_the_special_pieces_it_lacks(tmp_path: Path) -> None:
    prefix = str(tmp_path / "old")
    SentencePieceTrainer.train(
        sentence_iterator=iter(sentences(50)),
        model_prefix=prefix,
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    settings = SentencePiece(path=f"{prefix}.model")
    settings.check()
    made = settings.build([])
    size = SentencePieceProcessor(model_file=f"{prefix}.model").get_piece_size()
    assert (made.unk_id, made.cls_id, made.sep_id) == (0, 1, 2)
    assert (made.pad_id, made.mask_id, made.vocab_size) == (size, size + 1, size + 2)
    assert made.decode([made.mask_id, *made.encode(["a cat"])[0]]) == "a cat"


def test_gpt2_is_itself_without_the_added_tokens(tmp_path: Path) -> None:
    folder = str(gpt2_vocabulary(tmp_path))
    with_mask, without = ByteBPE(path=folder), ByteBPE(path=folder, mlm_tokens=False)
    assert with_mask.fingerprint("") != without.fingerprint("")
    added, exact = with_mask.build([]), without.build([])
    assert added.vocab_size == exact.vocab_size + 2 == 260
    assert (added.pad_id, added.mask_id) == (258, 259)
    assert exact.mask_id is None
    assert exact.special_ids == (257,)


def test_bert_lowers_case_and_needs_its_special_tokens(tmp_path: Path) -> None:
    folder = bert_vocabulary(tmp_path)
    lowered = WordPiece(path=str(folder)).build([]).encode(["THE Cat"])[0]
    kept = WordPiece(path=str(folder / "vocab.txt"), lowercase=False).build([]).encode(["THE Cat"])
    assert lowered.tolist() == [5, 6]
    assert kept[0].tolist() == [1, 1]
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\nthe\n")
    with pytest.raises(UserError, match=r"lacks \[CLS\], \[SEP\], \[MASK\]"):
        WordPiece(path=str(folder)).build([])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (SentencePiece(path="nowhere.model"), "give a SentencePiece .model"),
        (WordPiece(path="nowhere"), "it takes a folder with vocab.txt"),
        (ByteBPE(path="nowhere"), "a folder with vocab.json and merges.txt"),
        (ByteBPE(path="."), "holds no vocab.json and no merges.txt"),
    ],
)
def test_missing_vocabularies_are_told(settings, said, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=said):
        settings.check()


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.model").write_text("no model")
    with pytest.raises(UserError, match="is not a SentencePiece model"):
        SentencePiece(path=str(tmp_path / "x.model")).build([])


def test_a_vocabulary_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """Not UTF-8, no JSON, merges of nothing, or an id that would make the model as large."""
    words = bert_vocabulary(tmp_path)
    file = words if words.is_file() else words / "vocab.txt"
    file.write_bytes(file.read_bytes() + b"caf\xe9\n")
    with pytest.raises(UserError, match=r"vocab\.txt is not a vocabulary"):
        WordPiece(path=str(words)).build([])
    bert_vocabulary(tmp_path)
    file.write_text(file.read_text() + "[CLS]\n")
    with pytest.raises(UserError, match=r"vocab\.txt are not 0, 1, 2"):
        WordPiece(path=str(words)).build([])
    pieces = json.loads((gpt2_vocabulary(tmp_path) / "vocab.json").read_text())
    for damage in ("[1]", "{", json.dumps(pieces | {"far": 10**9}), json.dumps(pieces | {"x": 0})):
        (tmp_path / "vocab.json").write_text(damage)
        with pytest.raises(UserError, match=r"vocab\.json"):
            ByteBPE(path=str(tmp_path)).build([])
    gpt2_vocabulary(tmp_path)
    (tmp_path / "merges.txt").write_text("#version: 0.2\n¿ ?\n")
    with pytest.raises(UserError, match=r"merges\.txt is not a vocabulary"):
        ByteBPE(path=str(tmp_path)).build([])


def test_published_pieces_give_published_ids(tmp_path: Path) -> None:
    # An excerpt of bert-base-uncased, each piece on its own line; the rest left unused.
    rows = [f"[unused{i}]" for i in range(30522)]
    pieces = {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]", 103: "[MASK]", 999: "!"}
    pieces |= {1010: ",", 2088: "world", 3468: "##ble", 7592: "hello", 14477: "una", 20961: "##ffa"}
    for number, piece in pieces.items():
        rows[number] = piece
    (tmp_path / "vocab.txt").write_text("\n".join(rows) + "\n")
    made = WordPiece(path=str(tmp_path)).build([])
    assert made.vocab_size == 30522
    assert made.special_ids == (0, 100, 101, 102, 103)
    ids = made.encode(["Hello, unaffable world!"])[0].tolist()
    assert ids == [7592, 1010, 14477, 20961, 3468, 2088, 999]


def test_rare_words_are_forgotten_before_they_fill_memory() -> None:
    texts = [["often", "often", f"rare{number}"] for number in range(50)]
    assert counted(texts)["rare3"] == 1
    counts = counted(texts, most=10)
    assert counts["often"] == 100
    assert len(counts) <= 10


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff" * 99, None])
def test_a_damaged_tokenizer_is_one_line(tmp_path: Path, damage: bytes | None) -> None:
    small_piece().build(sentences(200)).save(tmp_path / "piece")
    Symbols(size=9).build(()).save(tmp_path / "symbols")
    for folder in (tmp_path / "piece", tmp_path / "symbols"):
        for file in list(folder.iterdir()):
            before = file.read_bytes()
            file.write_bytes(before[:-20] if damage is None else damage)
            with pytest.raises(UserError, match=str(folder)):
                load(folder)
            file.write_bytes(before)
        load(folder)
        described = json.loads((folder / "tokenizer.json").read_text())
        described["template"]["end"] = [10**30]
        (folder / "tokenizer.json").write_text(json.dumps(described))
        with pytest.raises(UserError, match="names an id that its tokenizer"):
            load(folder)
