"""A SentencePiece unigram model as a fast tokenizer of the library `tokenizers`.

Both find the most probable segmentation of a normalised text. The parts of the fast one:

    characters    the model's own table of replacements (NFKC and spaces), as it is in the file
    spaces        none at both ends, one for several, ▁ for each, one before the text
    pieces        the model's, by their logarithmic probabilities; others by bytes, if it has them
    back          ▁ to spaces, bytes to characters, without the first spaces

The library finds special tokens in a text by their names; our tokenizer never does.
"""

from __future__ import annotations

from typing import Any

from chimera.data.tokenizer.sentence_piece import SentencePieceTokenizer

#: Types of pieces in SentencePiece's format.
NORMAL = 1
UNKNOWN = 2
CONTROL = 3
USER = 4
BYTE = 6
UNIGRAM = 1
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


def fast(tokenizer: SentencePieceTokenizer, *, continues: bool = False) -> Any:
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
    how = model.normalizer_spec
    pieces = model.pieces
    if model.trainer_spec.model_type != UNIGRAM or any(p.type == USER for p in pieces):
        return None
    bytes_too = any(p.type == BYTE for p in pieces)
    scores = [(p.piece, NEVER if p.type in (BYTE, CONTROL) else p.score) for p in pieces]
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
