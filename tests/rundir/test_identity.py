"""What belongs to the identity of a run."""

from __future__ import annotations

from chimera.config.compose import compose, plain
from chimera.rundir.identity import differences, identity

DATA = ("data=text", "data.path=README.md")


def test_a_callback_of_ones_own_belongs_to_the_run_and_ours_do_not() -> None:
    usual = plain(compose([*DATA]))
    quiet = plain(compose([*DATA, "callbacks.progress=null", "guard=skip"]))
    mine = plain(compose([*DATA, "+callbacks.mine._target_=mine.Ema", "+callbacks.mine.decay=0.9"]))
    assert identity(usual) == identity(quiet)
    assert identity(usual) != identity(mine)
    assert differences(usual, mine) == [
        "callbacks.mine._target_=None there, mine.Ema here",
        "callbacks.mine.decay=None there, 0.9 here",
    ]
