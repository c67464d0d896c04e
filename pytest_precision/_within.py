"""Hold a path that comes from outside against the folder in which it must lie.

Arguments, recordings, sidecars, baselines, reports, variables and git's trees may name any path: an
absolute one, one that goes up, one through a link. Joined to a folder, it would lie elsewhere.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from pytest_precision.errors import expected_but_got, named

_CONTROL = re.compile("[\x00-\x1f\x7f]")


def path_within(
    folder: Path,
    name: str,
    role: str,
    *,
    follow: bool = False,
    advice: str = "",
    error: type[Exception] = ValueError,
) -> Path:
    """Return the path that a text names in a folder, if it can lie nowhere else.

    The folder itself may be reached through links. What the text names need not exist.

    Args:
        folder: in which the path must lie.
        name: the path as others wrote it, with `/` between its parts.
        role: what the text is, for the message, such as `a submodule`.
        follow: whether a part may be a link that leads to somewhere in the folder.
        advice: the next step, for the message.
        error: type of the exception.

    Raises:
        Exception: of type `error`: the text is absolute or empty, has an empty part, `.`, `..`,
            `.git` or a control character, or leads through or to a symbolic link.
    """
    fault = fault_of(name) or (_way_out if follow else _link_on_the_way)(folder, name)
    if fault:
        expected = f"{role} whose path lies in {folder}"
        raise error(expected_but_got(expected, f"{named('path', name)}, {fault}", advice))
    return folder / name


def fault_of(name: str) -> str:
    """Return why a text can be no path in a folder, whatever lies there; empty if it can."""
    if not name:
        return "which is empty"
    if os.path.isabs(name):
        return "which is absolute"
    if _CONTROL.search(name):
        return "which has a control character"
    for part in name.split("/"):
        if part in ("", ".", ".."):
            return f"which has the part {part!r}"
        if part.casefold() == ".git":
            return f"which has {part!r}, where git keeps a repository"
    return ""


def _link_on_the_way(folder: Path, name: str) -> str:
    """Return which part of a path in a folder is a symbolic link, in words; empty if none is."""
    path = folder
    for part in name.split("/"):
        path /= part
        if os.path.islink(path):
            return f"which leads through the link {path}"
    return ""


def _way_out(folder: Path, name: str) -> str:
    """Return where a path in a folder leads outside it, in words; empty if it stays inside."""
    end = Path(os.path.realpath(folder / name))
    return "" if end.is_relative_to(os.path.realpath(folder)) else f"which leads to {end}"
