"""Store recordings at addresses of fsspec, such as `s3://bucket/run`, and read them from there.

A recording is made and read in a folder of this machine. Its files are sent whole, once they are
closed; until then, what a rank's journal needs is sent in parts after each train step, so that the
steps of a rank that is killed can be read.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pytest_precision._folders import OwnFolder
from pytest_precision.errors import RecordingError, expected_but_got
from pytest_precision.trace.file_parts import FileParts, pieces_of

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

    def names(self) -> list[str]:
        """Return the names of the files below the address.

        Raises:
            RecordingError: they cannot be looked for.
        """
        with self.opened() as (files, path):
            taken = files.find(path) if files.exists(path) else []
        return [PurePosixPath(file).name for file in taken]

    @contextmanager
    def sent(self) -> Iterator[OutFolder]:
        """Yield a folder of this machine; send its files when the block ends, by an error too.

        Raises:
            RecordingError: they cannot be sent, or another recording has sent files of their names.
        """
        with OwnFolder("sent") as own_folder:
            folder = own_folder / "recording"  # without the file that says whose folder it is
            folder.mkdir()
            sending = _Sending(self, folder)
            try:
                yield OutFolder(folder, sending.send_added)
            except BaseException:
                with suppress(RecordingError):  # what has ended the run is the news
                    sending.send_wholes()
                raise
            sending.send_wholes()

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
            with self.opened() as (files, path):
                places = {PurePosixPath(file).name: file for file in files.ls(path, detail=False)}
                for name, pieces in pieces_of(places).items():
                    with (folder / name).open("wb") as file:
                        for piece in pieces:
                            with files.open(places[piece], "rb") as sent_file:
                                shutil.copyfileobj(sent_file, file)
            try:
                yield folder
            except RecordingError as error:
                raise RecordingError(str(error).replace(str(folder), str(self))) from error

    @contextmanager
    def opened(self) -> Iterator[tuple[Any, str]]:
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


class OutFolder(NamedTuple):
    """A folder that a rank records into.

    Attributes:
        path: of this machine.
        settled: is called when the journal there has grown, and makes the steps outlast the rank.
    """

    path: Path
    settled: Callable[[], None] = lambda: None


class _Sending:
    """Sends the files of a folder to an address, while they grow and as they end.

    Args:
        address: where to.
        folder: of this machine.
    """

    def __init__(self, address: RemoteFolder, folder: Path) -> None:
        self._address = address
        self._folder = folder
        self._parts = FileParts(folder)
        self._names: set[str] = set()

    def send_added(self) -> None:
        """Send what the rank has added to its files.

        Raises:
            RecordingError: nothing can be sent at all. What is not sent later is sent after the
                next step: a loop does not end because a network is down for a while.
        """
        suppressed = suppress(RecordingError) if self._names else nullcontext()
        with suppressed, self._address.opened() as (files, path):
            files.makedirs(path, exist_ok=True)
            for file in self._folder.glob("recording.json"):
                if file.name not in self._names:
                    self._put(files, path, file.name, file.read_bytes())
            for name, content in self._parts.added():
                self._put(files, path, name, content)

    def send_wholes(self) -> None:
        """Send all files, those last that say that others are whole, and remove their parts.

        Raises:
            RecordingError: one cannot be sent, or another recording has sent one of its name.
        """
        with self._address.opened() as (files, path):
            files.makedirs(path, exist_ok=True)
            for file in sorted(self._folder.iterdir(), key=_order):
                self._expect_free(files, path, file.name)
                files.put_file(str(file), f"{path}/{file.name}")
            for name in self._parts.names:
                with suppress(Exception):  # who may not remove them leaves what nobody reads
                    files.rm_file(f"{path}/{name}")

    def _put(self, files: Any, path: str, name: str, content: bytes) -> None:
        self._expect_free(files, path, name)
        files.pipe_file(f"{path}/{name}", content)
        self._names.add(name)

    def _expect_free(self, files: Any, path: str, name: str) -> None:
        """Raise unless a name is free, or this rank has sent it.

        Raises:
            RecordingError: another recording has sent a file of this name.
        """
        if name not in self._names and files.exists(f"{path}/{name}"):
            got = f"{self._address}, which has {name} of another one"
            raise RecordingError(expected_but_got("a folder for this recording alone", got))


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


@contextmanager
def recorded_into(place: Path | RemoteFolder) -> Iterator[OutFolder]:
    """Yield the folder to record into; what is for an address is sent there.

    Raises:
        RecordingError: it cannot be sent.
    """
    if isinstance(place, Path):
        yield OutFolder(place.absolute())  # the loop may change the folder
    else:
        with place.sent() as out:
            yield out


def _order(file: Path) -> tuple[bool, str]:
    return _LAST.match(file.name) is not None, file.name
