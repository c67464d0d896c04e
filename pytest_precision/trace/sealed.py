"""A recording whose manifest stores each file's size and digest, to detect damage.

Each rank seals its own files when it has written them; whichever is the last puts all seals into
`recording.json`, which has a digest of itself. No collective does this: a script may have destroyed
its process group, and a rank may have died. A digest tells damage; it is no signature.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import xxhash
from torch import Tensor

from pytest_precision._within import path_within
from pytest_precision.errors import expected_but_got, is_bad_input
from pytest_precision.trace.digests import digest
from pytest_precision.trace.files import TraceFiles, mapped, no_regular, regular, write_whole
from pytest_precision.trace.rank_log import sealed_logs
from pytest_precision.trace.rank_origin import RankOrigin
from pytest_precision.trace.sound import sound_integer, sound_list, sound_object, sound_text

__tracebackhide__ = is_bad_input

Seal = tuple[int, str]
"""Number of bytes of a file, and their xxh3-128."""

SEAL_BYTES = 16 << 20
"""Bytes that `recording.json` may have: those of 40,000 ranks."""


def files_of(rank: int) -> tuple[str, ...]:
    """Return the names of the files that a rank writes into every recording."""
    return f"rank{rank}.json", f"rank{rank}.bin"


def log_of(rank: int) -> str:
    """Return the file name of a rank's optional log of tensor operations."""
    return f"operations{rank}.json"


def optional_files_of(rank: int) -> tuple[str, ...]:
    """Return the names of the files that a rank writes into some recordings."""
    return log_of(rank), *(log.file_of(rank) for log in sealed_logs())


def drop_empty_logs(folder: Path, rank: int) -> None:
    """Remove the empty log files of a rank.

    A recording of a thousand ranks would have three thousand such files.
    """
    for log in sealed_logs():
        path = folder / log.file_of(rank)
        with suppress(FileNotFoundError):
            if json.loads(path.read_text(encoding="utf-8")) == in_json(log.nothing()):
                path.unlink()


def seals(folder: Path, rank: int) -> dict[str, Seal]:
    """Return the size and digest of each file that a rank has written, by file name."""
    by_name = {}
    optional = (name for name in optional_files_of(rank) if (folder / name).exists())
    for name in (*files_of(rank), *optional):
        with regular(folder / name) as (file, size):
            by_name[name] = size, digest(mapped(file, size))
    return by_name


def put_seals(
    folder: Path, rank: int, world_size: int, origin: RankOrigin
) -> dict[str, Seal] | None:
    """Write the digests of a rank's files; return those of all ranks, or None if one is missing.

    Two that end at the same time may both be the last.

    Args:
        folder: that all ranks of this node write into.
        rank: that has written its files.
        world_size: number of ranks.
        origin: of the files.
    """
    drop_empty_logs(folder, rank)
    write_whole(seal_path(folder, rank), {"origin": origin._asdict(), "files": seals(folder, rank)})
    all_seals: dict[str, Seal] = {}
    with suppress(FileNotFoundError):
        for other in range(world_size):
            all_seals |= read_seals(folder, other)[1]
        return all_seals
    return None


def read_seals(folder: Path, rank: int) -> tuple[RankOrigin, dict[str, Seal]]:
    """Return the origin of a rank's files, and their seals by file name, as the rank wrote them.

    Raises:
        FileNotFoundError: it has not finished, or wrote elsewhere.
        ValueError: the file is damaged.
    """
    path = seal_path(folder, rank)
    with regular(path) as (file, size):
        content = json.loads(mapped(file, size).numpy().tobytes())
    sound_object(path.name, content, ["origin", "files"])
    origin = RankOrigin.sound(content["origin"])
    files = sound_object("files", content["files"])
    optional = [name for name in optional_files_of(rank) if name in files]
    sound_object("files", files, [*files_of(rank), *optional])
    return origin, {name: sound_seal(value) for name, value in files.items()}


def has_seals(folder: Path) -> bool:
    """Return whether ranks have left their digests in a folder for the last rank to collect."""
    return any(folder.glob("seal*.json"))


def sound_seal(value: Any) -> Seal:
    """Check the parsed seal of a file, and return it.

    Raises:
        ValueError: it is none.
    """
    size, file_digest = sound_list("the seal of a file", value, 2)
    return sound_integer("the size of a file", size), sound_text(
        "the digest of a file", file_digest
    )


def drop_seals(folder: Path, world_size: int) -> None:
    """Remove the temporary files in which ranks left their digests."""
    for rank in range(world_size):
        seal_path(folder, rank).unlink(missing_ok=True)


def signed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Add to a manifest's content a digest of that content."""
    return {**content, "digest": _own_digest(content)}


def read_signed(path: Path) -> dict[str, Any]:
    """Parse `recording.json`, without checking its digest.

    Raises:
        ValueError: it is too large, or no JSON object.
        OSError: it cannot be read.
    """
    with regular(path) as (file, size):
        if size > SEAL_BYTES:
            got = f"{size}, more than any recording has"
            raise ValueError(expected_but_got(f"at most {SEAL_BYTES} bytes of {path.name}", got))
        content = json.loads(mapped(file, size).numpy().tobytes())
    if type(content) is not dict:
        raise ValueError(expected_but_got(f"an object in {path.name}", type(content).__name__))
    return content


def expect_signed(name: str, content: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest's content without its digest; raise if the digest does not match.

    Raises:
        ValueError: it is not.
    """
    content = dict(content)
    if content.pop("digest", None) != _own_digest(content):
        got = "another digest, so it was edited or damaged"
        raise ValueError(expected_but_got(f"{name} as it was written", got))
    return content


class SealedFiles(TraceFiles):
    """The files of a recording, all read and checked against their digests at once.

    All of them are looked at once, so that damage is found before anything is compared: in what a
    comparison leaves out too, and in the padding between tensors.

    Args:
        folder: of the recording.
        seals: name of each file to its seal; other files are no part of the recording. A rank
            without a log had nothing to say.
        world_size: number of ranks.

    Attributes:
        folder: as given.

    Raises:
        ValueError: a file is not as it was sealed.
        OSError: a file cannot be read.
    """

    def __init__(self, folder: Path, seals: Mapping[str, Seal], world_size: int) -> None:
        self.folder = folder
        paths = {name: path_within(folder, name, "a file of a recording") for name in seals}
        for name, (size, _) in seals.items():
            _expect_size(paths[name], size)
        self._contents = {name: bytes_as_sealed(paths[name], seal) for name, seal in seals.items()}
        self._parsed = {
            log.file_of(rank): nothing
            for log in sealed_logs()
            for nothing in (in_json(log.nothing()),)
            for rank in range(world_size)
            if log.file_of(rank) not in seals
        }

    def has(self, path: Path) -> bool:
        """Return whether the content of a file is known: the manifest names it, or need not."""
        return path.name in self._contents or path.name in self._parsed

    def data(self, path: Path) -> Any:
        """Return the parsed content of a JSON file of the recording; callers must not change it."""
        if path.name not in self._parsed:
            self._parsed[path.name] = json.loads(self._contents[path.name].numpy().tobytes())
        return self._parsed[path.name]

    def bytes(self, path: Path) -> Tensor:
        """Return the bytes of a file of the recording as a uint8 tensor, mapped copy-on-write."""
        return self._contents[path.name]


def _expect_size(path: Path, size: int) -> None:
    """Raise unless a path is a regular file of the given size in bytes."""
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        raise no_regular(path)
    if status.st_size != size:
        raise ValueError(expected_but_got(f"{size} bytes of {path.name}", status.st_size))


def bytes_as_sealed(path: Path, seal: Seal) -> Tensor:
    """Return the bytes of a file, a uint8 tensor, if they have the size and digest of its seal.

    Raises:
        ValueError: they have not, or the path is no regular file.
        OSError: it cannot be read.
    """
    size, expected = seal
    _expect_size(path, size)
    with regular(path) as (file, _):
        content = mapped(file, size)
    if digest(content) != expected:
        raise ValueError(expected_but_got(f"{path.name} as it was written", "another digest of it"))
    return content


def in_json(content: Any) -> Any:
    """Return plain data as a JSON file has it, in which a tuple is a list."""
    return json.loads(json.dumps(content))


def _own_digest(content: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True).encode())


def seal_path(folder: Path, rank: int) -> Path:
    """Return the path of the temporary file in which a rank leaves the digests of its files."""
    return folder / f"seal{rank}.json"
