"""Types of hyperparameters with their ranges; a constructor's signature is the schema of its keys.

Does not import torch, so that settings are checked before torch is loaded.
"""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt

#: What a run, or an option of a group, may be called: part of a file's name, never of a path.
NAME = r"[\w.+-]{1,200}"

PositiveInt = Annotated[int, Ge(1)]
NonNegativeInt = Annotated[int, Ge(0)]
#: Of random numbers; numpy and Lightning take 32 bits.
Seed = Annotated[int, Ge(0), Le(2**32 - 1)]
PositiveFloat = Annotated[float, Gt(0)]
NonNegativeFloat = Annotated[float, Ge(0)]
Fraction = Annotated[float, Ge(0), Le(1)]
ProperFraction = Annotated[float, Ge(0), Lt(1)]
