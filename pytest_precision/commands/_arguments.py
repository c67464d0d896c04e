"""Parse the arguments of commands that are numbers, folders and addresses."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from pytest_precision.errors import expected_but_got
from pytest_precision.trace.remote_folder import RemoteFolder, folder_named


def place_argument(text: str) -> Path | RemoteFolder:
    """Parse a text into a folder, or into an address such as `s3://bucket/run`.

    Raises:
        argparse.ArgumentTypeError: an address has credentials.
    """
    try:
        return folder_named(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def folder_argument(text: str) -> Path:
    """Parse a text into a folder of this machine.

    Raises:
        argparse.ArgumentTypeError: it is an address.
    """
    place = place_argument(text)
    if not isinstance(place, Path):
        raise argparse.ArgumentTypeError(expected_but_got("a folder of this machine", place))
    return place


def count_of(text: str) -> int:
    """Parse a text into a whole number from 1.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(expected_but_got("a whole number from 1", repr(text)))
    return int(text)


def steps_of(text: str) -> tuple[range, ...]:
    """Parse a text such as `0,3-5` into ranges of step numbers, however long they are.

    Raises:
        argparse.ArgumentTypeError: it names none.
    """
    steps: list[range] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise argparse.ArgumentTypeError(
                expected_but_got("steps such as 3 or 0,3-5", repr(text))
            )
        steps.append(range(first, last + 1))
    return tuple(steps)
