"""Join the folders into which the nodes of one launch recorded, each on a disk of its own.

Rank 0 writes `recording.json`, and each rank the digests of its files. Without a shared disk no
rank sees the digests of all others, so that none completes the recording.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pytest_precision.errors import RecordingError, expected_but_got, is_bad_input
from pytest_precision.trace.journal import journal_path, read_journal
from pytest_precision.trace.manifest import MANIFEST_NAME, Manifest, damaged
from pytest_precision.trace.rank_origin import RankOrigin, clocks_apart, expect_one_release
from pytest_precision.trace.sealed import Seal, bytes_as_sealed, drop_seals, read_seals, seal_path
from pytest_precision.trace.unfinished import readable_recording
from pytest_precision.trace.whole_recording import SHOWN, UNFINISHED, some

__tracebackhide__ = is_bad_input

_ALL_NODES = "name the folders of all nodes of one launch, each once"


def join_recording(folders: Sequence[Path], out: Path) -> tuple[int, tuple[str, ...]]:
    """Copy the files of all ranks into one folder, and complete the recording there.

    The folders are only read. `out` appears once everything is in it and sound. Where a rank has
    not finished, `out` is as if all ranks had recorded into it.

    Args:
        folders: one of each node, or fewer if files of several were copied together.
        out: a new or empty folder.

    Returns:
        the number of ranks; in words, which of them have not finished, and clocks far apart.

    Raises:
        RecordingError: a rank is in no folder, or in two, or has no whole step; a file is damaged;
            the folders are of several launches or releases.
        OSError: a file cannot be copied.
    """
    manifest = _manifest_in(folders)
    folder_of_rank = _folder_of_each_rank(folders, manifest.world_size)
    origins: dict[int, RankOrigin] = {}
    files: dict[str, Seal] = {}
    with _appearing(out) as partial:
        for rank, folder in enumerate(folder_of_rank):
            try:
                origins[rank], seals = _copied(folder, rank, partial)
            except ValueError as error:
                raise damaged(folder, error) from error
            files |= seals
        _expect_one_launch(origins, folder_of_rank)
        expect_one_release(origins)
        finished = not any(partial.glob("*.journal"))
        replace(manifest, files=files if finished else {}).write(partial, manifest.world_size)
        recording = readable_recording("joined", partial)  # that the ranks fit together, too
        if finished:
            drop_seals(partial, manifest.world_size)
    return manifest.world_size, (*recording.endings, *clocks_apart(origins))


def _copied(folder: Path, rank: int, out: Path) -> tuple[RankOrigin, dict[str, Seal]]:
    """Copy what a rank has written; return its origin, and the seals of its files if it finished.

    Raises:
        ValueError: a file is damaged.
        OSError: one cannot be copied.
    """
    seal = seal_path(folder, rank)
    if os.path.lexists(seal):
        origin, seals = read_seals(folder, rank)
        for name, stored_seal in seals.items():
            bytes_as_sealed(folder / name, stored_seal)  # so that the message names this folder
        names = [*seals, seal.name]
    else:
        origin, seals = read_journal(folder, rank).origin, {}
        names = [f"rank{rank}.bin", journal_path(folder, rank).name]
    for name in names:
        shutil.copyfile(folder / name, out / name)
    return origin, seals


def _manifest_in(folders: Sequence[Path]) -> Manifest:
    """Return the manifest that rank 0 wrote into one of the folders.

    Raises:
        RecordingError: none has one, several have, or it is that of a whole recording.
    """
    for folder in folders:
        if not folder.is_dir():
            raise RecordingError(expected_but_got("a folder", folder, _ALL_NODES))
    with_manifest = [folder for folder in folders if os.path.lexists(folder / MANIFEST_NAME)]
    if len(with_manifest) != 1:
        names = " and ".join(map(str, with_manifest[:SHOWN]))
        got = f"one in {names}" if names else "none"
        words = f"{MANIFEST_NAME}, which rank 0 writes, in one of the folders"
        raise RecordingError(expected_but_got(words, got, _ALL_NODES))
    manifest = Manifest.read(with_manifest[0])
    if manifest.files:
        got = f"{with_manifest[0]}, which has files of all ranks"
        raise RecordingError(
            expected_but_got("folders of nodes", got, "compare it as it is: it is whole")
        )
    return manifest


def _folder_of_each_rank(folders: Sequence[Path], world_size: int) -> list[Path]:
    """Return, for each rank, the folder that has its files.

    Raises:
        RecordingError: none has, or several have; or the rank has not finished.
    """
    places = [
        [
            folder
            for folder in folders
            if any(os.path.lexists(path(folder, rank)) for path in (seal_path, journal_path))
        ]
        for rank in range(world_size)
    ]
    twice = [rank for rank, holding in enumerate(places) if len(holding) > 1]
    if twice:
        both = " and ".join(map(str, places[twice[0]][:SHOWN]))
        got = f"rank {twice[0]} in {both}"
        raise RecordingError(expected_but_got("each rank in one folder", got, _ALL_NODES))
    begun = {
        rank: folder
        for rank, holding in enumerate(places)
        for folder in folders
        if not holding and os.path.lexists(folder / f"rank{rank}.bin")
    }
    if begun:
        rank, folder = next(iter(begun.items()))
        why = f"{UNFINISHED} other folders"
        got = f"rank {rank} of {world_size} in {folder}, which has not finished"
        raise RecordingError(expected_but_got("ranks that have finished", got, why))
    absent = [rank for rank, holding in enumerate(places) if not holding]
    if absent:
        searched = ", ".join(map(str, folders[:SHOWN]))
        got = f"no file of {some(absent)} in {searched}"
        raise RecordingError(
            expected_but_got(f"the files of all {world_size} ranks", got, _ALL_NODES)
        )
    return [holding[0] for holding in places]


def _expect_one_launch(origins: Mapping[int, RankOrigin], folders: Sequence[Path]) -> None:
    """Raise if ranks have met in several launches.

    Raises:
        RecordingError: with a folder of each of two.
    """
    launches = {origin.launch: folders[rank] for rank, origin in origins.items()}
    if len(launches) > 1:
        first, second, *_ = launches.values()
        got = f"{first} and {second}, which two launches recorded"
        raise RecordingError(expected_but_got("folders of one launch", got, _ALL_NODES))


@contextmanager
def _appearing(out: Path) -> Iterator[Path]:
    """Yield a folder beside `out`, which takes its place if the block ends without an error."""
    partial = out.with_name(f".{out.name}.{os.getpid()}")
    partial.mkdir()
    try:
        yield partial
        os.replace(partial, out)  # a folder that has files is not replaced
    finally:
        shutil.rmtree(partial, ignore_errors=True)
