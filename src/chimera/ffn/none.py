"""No feed-forward network: mixers only, as in Mamba's and xLSTM's stacks (SPEC ffn `none`)."""

from chimera.contract import Parts, Site


def no_ffn(site: Site, parts: Parts) -> None:
    """Return None; the block then has neither a feed-forward branch nor the norm before it.

    A module that returns zeros would leave the norm with parameters without gradients.
    """
