"""The one rule for files that are written where a user says.

A file that exists and was not made by this package is never replaced, unless a command was given
`--force`. What is no regular file, and what lies within a recording, is not replaced even then.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pytest_precision._whole_file import beside
from pytest_precision.errors import expected_but_got

MAKER = "pytest-precision"
"""What a file says that made it, where its form has a place for that."""

HEAD_BYTES = 1 << 13
"""Bytes of a file that show who made it."""

_RECORDING = re.compile(rb'\s*\{\s*"format":\s*\d+,\s*"command":')
"""How the recording.json of every format begins."""


class NotReplaceableError(FileExistsError):
    """A file cannot be written where it was asked for; the message says what is there."""


@dataclass(frozen=True)
class Destination:
    """A path where a user wants a file of ours.

    Attributes:
        path: what the user named; of a link, the file that it leads to is written.
        is_ours: tells from the first bytes of a file whether this package made it.
        force: whether a file of another maker may be replaced; None where there is no `--force`.
    """

    path: Path
    is_ours: Callable[[bytes], bool]
    force: bool | None = None

    def expect_free(self) -> None:
        """Raise unless the path is free, or has a file that may be replaced.

        Raises:
            NotReplaceableError: a file of another maker is there, what is no regular file, or the
                place lies within a recording.
            OSError: the path cannot be looked at.
        """
        target = self._target
        for folder in Path(os.path.realpath(target)).parents:
            if _is_recording(folder):
                got = f"{self.path}, within the recording {folder}"
                advice = "nothing is written into a recording: name another place"
                raise NotReplaceableError(expected_but_got("a file of its own", got, advice))
        try:
            status = target.lstat()
        except FileNotFoundError:
            if self.path.is_symlink() and not self.force:
                raise self._refused("a link to nothing") from None
            return
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "no regular file"
            got = f"{self.path}, which is {kind}"
            raise NotReplaceableError(expected_but_got("the path of a file", got, "name another"))
        if not self.force and not self.is_ours(head_of(target)):
            raise self._refused(f"which {MAKER} did not make")

    def put(self, text: str) -> None:
        """Write a UTF-8 text file completely, or leave what is there.

        Raises:
            OSError: as `placed`.
        """
        with self.placed() as partial:
            partial.write_text(text, encoding="utf-8")

    @contextmanager
    def placed(self) -> Iterator[Path]:
        """Yield a temporary file, which takes the place of `path` if the block ends without error.

        A file that another tool makes meanwhile stays: a new name is taken only if it is free.

        Raises:
            NotReplaceableError: see `expect_free`.
            OSError: the file cannot be written.
        """
        self.expect_free()
        target = self._target
        with beside(target) as partial:
            yield partial
            try:
                _take_name(partial, target)
            except FileExistsError:
                self.expect_free()  # it may be of now
                os.replace(partial, target)

    def remove(self) -> None:
        """Remove the file if it is one that may be replaced; do nothing if there is none.

        Raises:
            OSError: as `expect_free`, or it cannot be removed.
        """
        self.expect_free()
        self._target.unlink(missing_ok=True)

    @property
    def _target(self) -> Path:
        return Path(os.path.realpath(self.path)) if self.path.is_symlink() else self.path

    def _refused(self, problem: str) -> NotReplaceableError:
        expected = f"a new file, or one that {MAKER} has made,"
        force = ", or replace it with --force" if self.force is not None else ""
        advice = f"move it away, or name another place{force}"
        return NotReplaceableError(expected_but_got(expected, f"{self.path}, {problem}", advice))


def head_of(path: Path) -> bytes:
    """Return the first bytes of a regular file.

    Raises:
        OSError: it cannot be read, or is a link.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        return file.read(HEAD_BYTES)


def never_ours(head: bytes) -> bool:
    """Return False: no file that exists is replaced, whoever made it."""
    return False


def _take_name(partial: Path, target: Path) -> None:
    """Give a file a name that nothing has; its temporary name may stay.

    Raises:
        FileExistsError: something has it.
        OSError: the file cannot be put there.
    """
    try:
        os.link(partial, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC))
        os.replace(partial, target)


def _is_recording(folder: Path) -> bool:
    try:
        return _RECORDING.match(head_of(folder / "recording.json")) is not None
    except OSError:  # there is none, or it cannot be read
        return False
