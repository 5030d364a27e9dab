"""Cycle a list of mixers over the layers (SPEC M16).

    mixer of layer l = members[cycle[l mod len(cycle)]]

`pattern` is a function and returns the member itself, not a wrapper. Capabilities, parameter names
and state are therefore those of the member. Layers with the same member share no weights.
"""

from __future__ import annotations

from chimera.contract import Mixer, MixerFactory, Parts, Site


def pattern(
    site: Site, parts: Parts, *, cycle: list[str], members: dict[str, MixerFactory]
) -> Mixer:
    """Build the mixer of this layer.

    Args:
        site, parts: see `Mixer`.
        cycle: names of members in the order of the layers, repeated until the last layer.
        members: mixer factories by name.

    Raises:
        ValueError: `cycle` is empty or has names that are not in `members`.
    """
    if not cycle:
        raise ValueError("mixer.cycle is empty: name at least one mixer, as in [retnet, attention]")
    missing = [name for name in dict.fromkeys(cycle) if name not in members]
    if missing:
        raise ValueError(
            f"mixer.cycle names {', '.join(missing)}; the members are {', '.join(members)}"
        )
    return members[cycle[site.layer % len(cycle)]](site, parts)
