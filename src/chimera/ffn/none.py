"""No feed-forward network: mixers alone, as in Mamba's and xLSTM's own stacks (SPEC ffn `none`)."""

from chimera.contract import Parts, Site


def no_ffn(site: Site, parts: Parts) -> None:
    """Nothing, which the block takes as leave to drop the branch and the norm before it.

    A module that returned zeros would leave that norm with parameters that no gradient reaches.
    """
