"""Breaks of torch.compile's graph in every component, counted by `torch._dynamo.explain`.

    python -m tests.contract.graph                 every component, a line each
    python -m tests.contract.graph --only retnet   some

A break ends a graph: the compiler returns to Python, often for a number that it has to fetch from
the device. Counted are breaks in training with a padding mask, forward pass, of a model of one
layer whose other groups have plain choices. The backend is `eager`: only tracing costs time.
"""

from __future__ import annotations

import argparse
import logging
import sys

import torch
from torch._dynamo.utils import counters

from chimera.errors import UserError
from tests.contract.cases import Case, cases


def breaks(case: Case) -> list[str]:
    """The reason of each break, a line each.

    Raises:
        UserError: the component is refused in this model.
    """
    torch.manual_seed(0)
    model, ids, mask = case.model().train(), case.ids(), case.mask()
    torch._dynamo.reset()
    counters.clear()
    found = torch._dynamo.explain(model)(ids, mask)
    return [f"{r.reason.splitlines()[0]} ({_place(r)})" for r in found.break_reasons]


def _place(reason: object) -> str:
    stack = getattr(reason, "user_stack", None) or []
    for frame in reversed(stack):
        if "chimera" in frame.filename:
            return f"{frame.filename.rpartition('chimera/')[2]}:{frame.lineno}"
    return "elsewhere"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
    total = 0
    for case in cases(options.only, length=16, padding="both", depth=1):
        name = f"{case.group}={case.name} {'decoder' if case.causal else 'encoder'}"
        try:
            found = breaks(case)
        except UserError as refusal:
            print(refusal, file=sys.stderr)
            continue
        total += len(found)
        print(f"{name}: {len(found)}", *found, sep="\n    ", flush=True)
    print(f"{total} breaks")


if __name__ == "__main__":
    main()
