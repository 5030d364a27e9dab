"""A list of mixers cycled over the layers (SPEC M16; TITAN 4.1, Table 2, eq. 22; SAIDL 2.7).

    mixer of layer l = members[cycle[l mod len(cycle)]]

A function rather than a wrapper: what it gives back *is* the member, so its capabilities, its
parameters' names and its state are its own. Two layers of one kind are two members' worth of
weights, made by one factory.
"""

from __future__ import annotations

from chimera.contract import Mixer, MixerFactory, Parts, Site


def pattern(
    site: Site, parts: Parts, *, cycle: list[str], members: dict[str, MixerFactory]
) -> Mixer:
    """The mixer that stands at this layer.

    Args:
        cycle: names of members, in the order of the layers; it starts again at its end.
        members: factories by name.
    """
    if not cycle:
        raise ValueError("cycle names no mixer; it is a list such as [retnet, attention]")
    missing = [name for name in dict.fromkeys(cycle) if name not in members]
    if missing:
        raise ValueError(f"cycle names {', '.join(missing)}; the members are {', '.join(members)}")
    return members[cycle[site.layer % len(cycle)]](site, parts)
