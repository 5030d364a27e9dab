"""Continue prompts with a run: the next token is the likeliest, or a draw by top-k and top-p.

    p = softmax(z / T);  top-k keeps the k largest;  top-p (nucleus, arXiv 1904.09751) the smallest
    set of largest ones whose sum reaches p;  the rest is set to 0 and the sum back to 1

A draw takes one uniform number per sequence from that sequence's own generator, so the text does
not depend on the rest of the batch. z [b v] to ids [b].
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from chimera.config.trusted_config import recorded
from chimera.data.tokenizer.base import Tokenizer
from chimera.errors import UserError
from chimera.generate.settings import Generation
from chimera.model.decode import decode as decode_with
from chimera.model.language import LanguageModel
from chimera.rundir.directory import RunDir
from chimera.safe_io import expanded
from chimera.train.check import checked_model
from chimera.train.restore import restore

#: A tokenizer decodes the bytes of an unfinished character to this.
UNFINISHED = "\ufffd"


def write(settings: Generation, out: Callable[[str], object] | None = None) -> int:
    """Continue every prompt: a single one as its tokens come, several when a batch has ended.

    Raises:
        UserError: no checkpoint.
    """
    out = out or _print
    texts = settings.texts()
    directory = RunDir(expanded(settings.run))
    config = recorded(directory)
    if not config["model"].get("name"):  # of Chimera's own parts: refused before weights are read
        cast(LanguageModel, checked_model(config)).init_state(1)
    run = restore(directory, settings.checkpoint, trust=settings.trust)
    gpu = torch.cuda.is_available() and run.settings.accelerator != "cpu"
    model = cast(LanguageModel, run.task.model.to("cuda" if gpu else "cpu").eval())
    tokenizer = run.tokenizer
    opening = tokenizer.opening(packed=run.task.plain_text)
    encoded = tokenizer.encode(texts)
    prompts = [[*opening, *map(int, ids)] or [tokenizer.sep_id] for ids in encoded]
    for start in range(0, len(prompts), settings.batch):
        batch = prompts[start : start + settings.batch]
        tokens = decode(
            model, batch, settings, pad_id=tokenizer.pad_id, end_id=tokenizer.sep_id, first=start
        )
        if len(prompts) == 1:
            _stream(tokenizer, batch[0], tokens, out)
            break
        made = torch.stack(list(tokens), 1).tolist()
        for prompt, ids in zip(batch, made, strict=True):
            out(tokenizer.decode([*prompt, *ids]).rstrip(UNFINISHED) + "\n")
    if tokenizer.unk_id not in (tokenizer.pad_id, tokenizer.sep_id):  # it has a token for these
        unknown = sum(list(ids).count(tokenizer.unk_id) for ids in encoded)
        if unknown:
            note = f"note: the run's vocabulary lacks words or signs of the prompts ({unknown})"
            print(note, file=sys.stderr)
    return 0


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


def probabilities(
    logits: Float[Tensor, "b v"], *, temperature: float, top_k: int | None, top_p: float
) -> Float[Tensor, "b v"]:
    """The distribution that a token is drawn from."""
    # Subtracted first, or a tiny temperature would overflow.
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    wide = (wide - wide.amax(-1, keepdim=True)) / temperature
    order = wide.argsort(dim=-1, descending=True, stable=True)
    p = wide.gather(-1, order).softmax(-1)
    if top_k is not None:
        p[:, top_k:] = 0
        p = p / p.sum(-1, keepdim=True)
    # The first token whose sum reaches top_p stays, so at least one does.
    p = p.masked_fill(p.cumsum(-1) - p >= top_p, 0)
    p[:, 0] = p[:, 0].clamp(min=torch.finfo(p.dtype).tiny)
    return torch.zeros_like(p).scatter_(-1, order, p / p.sum(-1, keepdim=True))


def choose(
    logits: Float[Tensor, "b v"], settings: Generation, generators: Sequence[torch.Generator]
) -> Int[Tensor, " b"]:
    """The next token of each sequence."""
    if settings.greedy:
        return logits.argmax(-1)
    p = probabilities(
        logits, temperature=settings.temperature, top_k=settings.top_k, top_p=settings.top_p
    ).double()
    u = torch.cat([torch.rand(1, generator=g, dtype=torch.float64) for g in generators])
    edges = p.cumsum(-1)
    # Scaled by the sum, which is not exactly 1: no draw falls beyond the last token.
    drawn = torch.searchsorted(edges, u.to(p.device)[:, None] * edges[:, -1:], right=True)
    return drawn[:, 0].clamp(max=p.shape[-1] - 1)


def generators(seed: int, first: int, count: int) -> list[torch.Generator]:
    """A generator per sequence, seeded by its number among all prompts."""
    return [torch.Generator().manual_seed((seed << 20) + first + i) for i in range(count)]


def _stream(
    tokenizer: Tokenizer, ids: list[int], tokens: Iterable[Tensor], out: Callable[[str], object]
) -> None:
    """Write what each token adds; a character of several tokens is written with the last one."""
    shown = tokenizer.decode(ids)
    out(shown)
    for token in tokens:
        ids = [*ids, int(token[0])]
        text = tokenizer.decode(ids)
        if text.endswith(UNFINISHED):
            continue
        out(text[len(shown) :])
        sys.stdout.flush()
        shown = text
    out("\n")


def _print(text: str) -> None:
    """Write to standard output; a terminal gets no control characters but line breaks and tabs."""
    if sys.stdout.isatty():
        text = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
    sys.stdout.write(text)
