"""Write a trace's JSON files atomically, and map its binary files into memory."""

from __future__ import annotations

import errno
import json
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pytest_precision._whole_file import put_whole
from pytest_precision.errors import expected_but_got


def write_whole(path: Path, value: Any) -> None:
    """Write `value` to `path` as JSON, so that no reader ever sees the file half written."""
    put_whole(path, json.dumps(value))


class TraceFiles:
    """Reads the files of a trace that this pytest session wrote."""

    def has(self, path: Path) -> bool:
        """Return whether a trace has this file."""
        return path.exists()

    def data(self, path: Path) -> Any:
        """Return the parsed content of one of the trace's JSON files."""
        return json.loads(path.read_text(encoding="utf-8"))

    def bytes(self, path: Path) -> Tensor:
        """Return the bytes of one of the trace's files as a uint8 tensor, mapped copy-on-write."""
        with regular(path) as (file, size):
            return mapped(file, size)


OWN_FILES = TraceFiles()


def mapped(file: int, size: int) -> Tensor:
    """Map the first `size` bytes of an open file into memory, copy-on-write, as a uint8 tensor."""
    if size == 0:  # an empty file cannot be mapped
        return torch.empty(0, dtype=torch.uint8)
    memory = mmap.mmap(file, size, access=mmap.ACCESS_COPY)
    return torch.frombuffer(memory, dtype=torch.uint8)


@contextmanager
def regular(path: Path) -> Iterator[tuple[int, int]]:
    """Open a regular file for the block; yield (descriptor, size in bytes).

    Folders, devices, pipes and links are refused, and none of them is waited for.

    Raises:
        ValueError: it is none.
        OSError: it cannot be opened.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        file = os.open(path, flags)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket
            raise no_regular(path) from error
        raise
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise no_regular(path)
        yield file, status.st_size
    finally:
        os.close(file)


def no_regular(path: Path) -> ValueError:
    """Return the error for a path that is no regular file, but a link, folder, pipe or device."""
    return ValueError(expected_but_got("a regular file", f"{path.name}, which is none"))
