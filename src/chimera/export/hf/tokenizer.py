"""The tokenizer's files as AutoTokenizer reads them, for the library `tokenizers`.

A SentencePiece unigram model and the fast tokenizer of its pieces both find the most probable
segmentation of a normalised text. The parts of the fast one:

    characters    the model's own table of replacements (NFKC and spaces), as it is in the file
    spaces        none at both ends, one for several, ▁ for each, one before the text
    pieces        the model's, by their logarithmic probabilities; others by bytes, if it has them
    back          ▁ to spaces, bytes to characters, without the first spaces

The library finds special tokens in a text by their names; our tokenizer never does.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chimera.data.tokenizer.base import Tokenizer
from chimera.data.tokenizer.fast import FastTokenizer
from chimera.data.tokenizer.sentence_piece import SentencePieceTokenizer
from chimera.safe_io import write_json

#: Why there is no fast tokenizer.
REFUSED = "its SentencePiece model is of another kind than unigram, or has pieces of a user"
#: Tables that contain NFKC. The library looks a table up by graphemes and loses marks of a letter
#: with several; composed first, there are none. Only marks in an order that is not Unicode's
#: canonical one then give other ids.
COMPOSED = ("nmt_nfkc", "nmt_nfkc_cf")
#: The fullwidth tilde, which these tables keep.
KEPT = "\uff5e"
#: Spaces at the beginning of a text.
MANY = 1 << 16
#: Below every sum of probabilities: a text that spells the name of a byte is no byte.
NEVER = -1e6


def write(
    tokenizer: Tokenizer, folder: Path, *, opening: Sequence[int] | None = None, max_len: int
) -> str | None:
    """Write `tokenizer.json` and `tokenizer_config.json`.

    Args:
        tokenizer: of the model.
        folder: exists.
        opening: of a decoder, ids before a text, which then has no end, as in `generate.py`; what
            is decoded may go on from another text. None: special tokens are the template's.
        max_len: tokens per sequence in training.

    Returns:
        Why there are no such files; None if they were written.
    """
    decodes = opening is not None
    fast = _fast(tokenizer, continues=decodes)
    if isinstance(fast, str):
        return fast
    from tokenizers.processors import TemplateProcessing

    special = tokenizer.special
    template = tokenizer.template
    first, last = (template.start, template.end) if opening is None else (opening, ())
    around = (*first, *template.middle, *last)
    names = {i: fast.id_to_token(i) for i in (*tokenizer.special_ids, *around)}
    start, middle, end = ([names[i] for i in part] for part in (first, template.middle, last))
    fast.encode_special_tokens = False
    fast.post_processor = TemplateProcessing(
        single=[*start, "$A", *end],
        pair=[*start, "$A", *middle, "$B:1", *(f"{token}:1" for token in end)],
        special_tokens=[(token, i) for i, token in names.items()],
    )
    fast.save(str(folder / "tokenizer.json"))
    roles = {"pad": special.pad, "unk": special.unk, "cls": special.cls, "sep": special.sep}
    if decodes:
        roles |= {"bos": (*first, special.sep)[0], "eos": special.sep}
    about: dict[str, Any] = {f"{role}_token": names[i] for role, i in roles.items()}
    if special.mask is not None:
        about["mask_token"] = names[special.mask]
    about |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": max_len,
        "padding_side": "left" if decodes else "right",
        "clean_up_tokenization_spaces": False,
    }
    write_json(folder / "tokenizer_config.json", about)
    return None


def _fast(tokenizer: Tokenizer, *, continues: bool) -> Any:
    """The `tokenizers.Tokenizer` of a tokenizer, or why there is none."""
    if isinstance(tokenizer, FastTokenizer):
        from tokenizers import Tokenizer as Fast

        return Fast.from_str(tokenizer.fast.to_str())
    if isinstance(tokenizer, SentencePieceTokenizer):
        return unigram(tokenizer, continues=continues) or REFUSED
    return f"{type(tokenizer).__name__} has no fast form"


def unigram(tokenizer: SentencePieceTokenizer, *, continues: bool = False) -> Any:
    """The `tokenizers.Tokenizer` that gives the same ids; None for another kind of model.

    Args:
        tokenizer: of the model.
        continues: keep the first space of a decoded text, which may go on from another.
    """
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
    from tokenizers.models import Unigram

    format: Any = sentencepiece_model_pb2
    model = format.ModelProto.FromString(tokenizer.model)
    kinds = format.ModelProto.SentencePiece
    how = model.normalizer_spec
    pieces = model.pieces
    if model.trainer_spec.model_type != format.TrainerSpec.UNIGRAM or any(
        p.type == kinds.USER_DEFINED for p in pieces
    ):
        return None
    bytes_too = any(p.type == kinds.BYTE for p in pieces)
    scores = [
        (p.piece, NEVER if p.type in (kinds.BYTE, kinds.CONTROL) else p.score) for p in pieces
    ]
    made = Tokenizer(Unigram(scores, tokenizer.unk_id, byte_fallback=bytes_too))
    steps: list[Any] = []
    if how.name in COMPOSED:
        steps += [normalizers.Replace(KEPT, "\ufdd0"), normalizers.NFKC()]
        steps.append(normalizers.Replace("\ufdd0", KEPT))
    if how.precompiled_charsmap:
        steps.append(normalizers.Precompiled(how.precompiled_charsmap))
    if how.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(f), t) for f, t in (("^ +| +$", ""), (" {2,}", " "))]
    made.normalizer = normalizers.Sequence(steps)
    scheme = "always" if how.add_dummy_prefix else "never"
    made.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=False)
    back = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if how.add_dummy_prefix and not continues:
        back.append(decoders.Strip(" ", MANY if how.remove_extra_whitespaces else 1, 0))
    made.decoder = decoders.Sequence(back)
    wanted = {i: made.id_to_token(i) for i in tokenizer.special_ids if i < len(pieces)}
    roles = {i: role for role, i in vars(tokenizer.special).items()}
    # What the model lacks has the next ids, and is added in their order.
    wanted |= {i: f"[{roles[i].upper()}]" for i in tokenizer.special_ids if i >= len(pieces)}
    made.add_special_tokens(
        [AddedToken(wanted[i], special=True, normalized=False) for i in sorted(wanted)]
    )
    return made
