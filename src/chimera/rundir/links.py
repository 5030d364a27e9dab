"""Refuse a directory whose links lead out of it: what is read or written there is elsewhere."""

from __future__ import annotations

from pathlib import Path

from chimera.errors import UserError


def check_links(root: Path, *folders: str) -> None:
    """Look at the entries of a directory and of some folders in it; the directory may be a link.

    A link in a folder that leads to nothing passes: files there are replaced, never written into.

    Raises:
        UserError: naming the link.
    """
    inside = root.resolve()
    for folder in ("", *folders):
        place = root / folder
        for entry in sorted(place.iterdir()) if place.is_dir() else ():
            outside = entry.is_symlink() and not entry.resolve().is_relative_to(inside)
            if outside and (not folder or entry.exists()):
                raise UserError(
                    f"{entry} is a link out of its directory; put the file itself there, or link"
                    " the directory as a whole"
                )
