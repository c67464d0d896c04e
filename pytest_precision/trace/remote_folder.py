"""Store recordings at addresses of fsspec, such as `s3://bucket/run`, and read them from there.

A recording is made and read in a folder of this machine. Its files are sent whole, once they are
closed: object stores append nothing, and what they are sent in parts appears with the last one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from pytest_precision._folders import OwnFolder
from pytest_precision.errors import RecordingError, expected_but_got

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")

_LAST = re.compile(r"(seal|recording)")
"""Names of files that say that others are whole, which are sent after these."""


class RemoteFolder:
    """The address of a folder in a file system that fsspec knows.

    Args:
        text: as the user wrote it.

    Raises:
        ValueError: it has a password or a query, which logs and recordings would have, too.
    """

    def __init__(self, text: str) -> None:
        parts = urlsplit(text)
        if parts.password is not None or parts.query:
            scheme = parts.scheme
            got = f"{scheme}://… with a {'query' if parts.password is None else 'password'}"
            advice = f"give them to the file system {scheme} in its own variables or files"
            raise ValueError(expected_but_got("an address without credentials", got, advice))
        self._text = text.rstrip("/")

    def __str__(self) -> str:
        return self._text

    def expect_empty(self) -> None:
        """Raise unless there is no file below the address.

        Raises:
            RecordingError: there is one, or it cannot be looked for.
        """
        with self._opened() as (files, path):
            taken = files.find(path) if files.exists(path) else []
        if taken:
            got = f"--out={self}, which has {PurePosixPath(taken[0]).name}"
            raise RecordingError(expected_but_got("a new or empty folder", got, "name another"))

    @contextmanager
    def sent(self) -> Iterator[Path]:
        """Yield a folder of this machine; send its files when the block ends, by an error too.

        Raises:
            RecordingError: they cannot be sent, or another recording has sent files of their names.
        """
        with OwnFolder("sent") as own_folder:
            folder = own_folder / "recording"  # without the file that says whose folder it is
            folder.mkdir()
            try:
                yield folder
            except BaseException:
                with suppress(RecordingError):  # what has ended the run is the news
                    self._send(folder)
                raise
            self._send(folder)

    @contextmanager
    def fetched(self) -> Iterator[Path]:
        """Yield a folder of this machine with a copy of the files at the address.

        In a `RecordingError` within the block, the address stands in place of that folder.

        Raises:
            RecordingError: there is none, or they cannot be read.
        """
        with OwnFolder("fetched") as own_folder:
            folder = own_folder / "recording"
            folder.mkdir()
            with self._opened() as (files, path):
                for file in files.ls(path, detail=False):
                    files.get_file(file, str(folder / PurePosixPath(file).name))
            try:
                yield folder
            except RecordingError as error:
                raise RecordingError(str(error).replace(str(folder), str(self))) from error

    def _send(self, folder: Path) -> None:
        with self._opened() as (files, path):
            files.makedirs(path, exist_ok=True)
            for file in sorted(folder.iterdir(), key=_order):
                place = f"{path}/{file.name}"
                if files.exists(place):
                    got = f"{self}, which has {file.name} of another one"
                    raise RecordingError(expected_but_got("a folder for this recording alone", got))
                files.put_file(str(file), place)

    @contextmanager
    def _opened(self) -> Iterator[tuple[Any, str]]:
        """Yield the file system and the path there; name the address in what they raise.

        Raises:
            RecordingError: fsspec, or what it needs for this address, is not installed; or the file
                system raises.
        """
        try:
            url_to_fs = import_module("fsspec.core").url_to_fs
        except ModuleNotFoundError as error:
            advice = "pip install 'pytest-precision[fsspec]'"
            raise RecordingError(
                expected_but_got(f"fsspec, for the address {self},", error, advice)
            ) from error
        try:
            yield url_to_fs(self._text)
        except RecordingError:
            raise
        except Exception as error:
            why = " ".join(str(error).split())
            got = f"{self} ({type(error).__name__}: {why})"
            raise RecordingError(expected_but_got("an address that can be used", got)) from error


def folder_named(text: str | Path) -> Path | RemoteFolder:
    """Return the folder of this machine, or the address, that a text names.

    Raises:
        ValueError: an address has credentials.
    """
    return RemoteFolder(text) if isinstance(text, str) and _ADDRESS.match(text) else Path(text)


@contextmanager
def at_hand(place: Path | RemoteFolder) -> Iterator[Path]:
    """Yield the folder of a recording on this machine, of one at an address a copy.

    Raises:
        RecordingError: it cannot be copied.
    """
    if isinstance(place, Path):
        yield place
    else:
        with place.fetched() as folder:
            yield folder


def _order(file: Path) -> tuple[bool, str]:
    return _LAST.match(file.name) is not None, file.name
