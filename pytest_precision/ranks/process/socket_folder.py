"""Socket folder: a controller's temporary folder, whose path has to leave room for a socket's."""

from __future__ import annotations

import os
import tempfile

from pytest_precision.errors import expected_but_got

LONGEST_PATH = 107
"""Most bytes of a socket's path (sun_path in linux/un.h, without the terminating zero)."""
BELOW = len("/pytest-precision-server-12345678/pymp-12345678/listener-12345678")
"""Bytes of it that the fork server and multiprocessing append to the temporary folder."""
SHORT_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")
"""Folders to use instead if the path of the temporary folder is too long."""


def folders_of_controllers() -> set[str]:
    """Return the parents of all folders of a controller with this process's temporary folder."""
    temporary = tempfile.gettempdir()
    return {temporary, short_folder(temporary)}


def short_folder(wanted: str, others: tuple[str, ...] = SHORT_FOLDERS) -> str:
    """Return the first of these folders whose path leaves room for that of a socket.

    Raises:
        OSError: none of the paths does.
    """
    for folder in (wanted, *others):
        if len(os.fsencode(folder)) + BELOW <= LONGEST_PATH and os.access(folder, os.W_OK):
            return folder
    raise OSError(
        expected_but_got(
            f"a temporary folder whose path has at most {LONGEST_PATH - BELOW} bytes, for "
            "a socket,",
            f"{wanted!r}",
            "set TMPDIR to a shorter one",
        )
    )
