"""Continue prompts by the settings of a generation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from jaxtyping import Int
from torch import Tensor

from chimera.errors import UserError
from chimera.generate.sample import choose, generators
from chimera.generate.settings import Generation
from chimera.model.decode import decode as decode_with
from chimera.model.language import LanguageModel


def decode(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    settings: Generation,
    *,
    pad_id: int,
    end_id: int | None,
    first: int = 0,
) -> Iterator[Int[Tensor, " b"]]:
    """Yield the next token of every sequence, until all have ended.

    Args:
        model: in evaluation mode.
        prompts: ids, at least one each.
        settings: of the generation.
        pad_id, end_id: as of `chimera.model.decode.decode`.
        first: number of the first prompt among all, for the seed.

    Raises:
        UserError: the model knows fewer positions than the longest prompt and its continuation.
    """
    longest = max(map(len, prompts))
    try:
        model.check_length(longest + settings.max_new - 1)
    except UserError as error:
        why = str(error).partition(";")[0]
        raise UserError(
            f"max_new={settings.max_new} after a prompt of {longest} tokens is too long: {why};"
            " lower max_new, or shorten the prompt"
        ) from error
    sample = partial(
        choose, settings=settings, generators=generators(settings.seed, first, len(prompts))
    )
    return decode_with(
        model, prompts, sample, max_new=settings.max_new, pad_id=pad_id, end_id=end_id
    )
