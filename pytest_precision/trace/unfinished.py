"""Read a recording that a rank has not finished: the train steps that are whole on all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pytest_precision.errors import RecordingError, expected_but_got, is_bad_input
from pytest_precision.trace.journal import Journaled, read_journal
from pytest_precision.trace.manifest import JOIN, Manifest, damaged
from pytest_precision.trace.rank_origin import RankOrigin, expect_one_release
from pytest_precision.trace.rank_place import RankPlace
from pytest_precision.trace.recording import Recording
from pytest_precision.trace.sealed import Seal, SealedFiles, files_of, read_seals
from pytest_precision.trace.whole_recording import (
    SHOWN,
    UNFINISHED,
    some,
    sound_recording,
    whole_recording,
)

__tracebackhide__ = is_bad_input

UNKNOWN_END = (
    "and has not said why: it was killed, its disk is full, its node died, or it hangs or "
    "still runs"
)
"""What is known of the end of a rank that could say nothing."""


class UnfinishedFiles(SealedFiles):
    """The files of a recording that some ranks have not finished, as if these had ended.

    Its logs are empty: what they say is of steps that are not whole, too.

    Args:
        folder: of the recording.
        seals: name of each file of the ranks that have finished to its seal.
        unfinished: rank to what it has left.
        world_size: number of ranks.

    Raises:
        ValueError: a file is not as it was sealed.
        OSError: a file cannot be read.
    """

    def __init__(
        self,
        folder: Path,
        seals: Mapping[str, Seal],
        unfinished: Mapping[int, Journaled],
        world_size: int,
    ) -> None:
        traces = {name for rank in range(world_size) for name in files_of(rank)}
        super().__init__(
            folder, {name: seal for name, seal in seals.items() if name in traces}, world_size
        )
        for rank, left in unfinished.items():
            self._contents[f"rank{rank}.bin"] = left.content
            self._parsed[f"rank{rank}.json"] = left.index


def readable_recording(name: str, folder: Path) -> Recording:
    """Read a recording; of one that a rank has not finished, the steps that are whole on all ranks.

    Args:
        name: `candidate` or `reference`, or what else a message calls it.
        folder: that was recorded into.

    Raises:
        RecordingError: the folder holds none, a rank has left nothing in it, or a file is damaged.
    """
    manifest = Manifest.read(folder)
    if manifest.files:
        return whole_recording(name, folder)
    try:
        return _until_the_end(name, folder, manifest)
    except RecordingError:
        raise
    except Exception as error:
        raise damaged(folder, error) from error


def _until_the_end(name: str, folder: Path, manifest: Manifest) -> Recording:
    ranks = range(manifest.world_size)
    origins: dict[int, RankOrigin] = {}
    seals: dict[str, Seal] = {}
    unfinished: dict[int, Journaled] = {}
    for rank in ranks:
        with suppress(FileNotFoundError):
            origins[rank], of_rank = read_seals(folder, rank)
            seals |= of_rank
            continue
        with suppress(FileNotFoundError):
            unfinished[rank] = read_journal(folder, rank)
            origins[rank] = unfinished[rank].origin
    _expect_all(folder, manifest, origins)
    expect_one_release(origins)
    if not unfinished:  # no rank could see the seals of all
        manifest = replace(manifest, files=seals)
        return sound_recording(name, manifest, SealedFiles(folder, seals, manifest.world_size))
    begun = min(unfinished, key=lambda rank: unfinished[rank].steps)
    if not unfinished[begun].steps:
        got = f"{folder}, in which rank {begun} ({origins[begun].host}) has none"
        advice = f"{UNFINISHED} another folder"
        raise RecordingError(expected_but_got("a whole train step of each rank", got, advice))
    files = UnfinishedFiles(folder, seals, unfinished, manifest.world_size)
    recording = sound_recording(name, manifest, files)
    endings = (*_endings(unfinished, recording.trace.places),)
    # A rank that has finished may have made fewer steps, too.
    last = (files.data(folder / f"rank{rank}.json")["moments"][-1] for rank in ranks)
    return replace(recording, endings=endings).until(min(step for _, _, step, *_ in last))


def _expect_all(folder: Path, manifest: Manifest, origins: Mapping[int, RankOrigin]) -> None:
    """Raise unless each rank has left something, and all are of one launch.

    Raises:
        RecordingError: with the ranks that have not, and the hosts of those that have; or with two
            ranks of two launches.
    """
    absent = [rank for rank in range(manifest.world_size) if rank not in origins]
    if absent:
        hosts = ", ".join(dict.fromkeys(origin.host for origin in origins.values()))
        got = f"{folder}, which {some(absent)} of {manifest.world_size} has not finished"
        got += f"; it has ranks of {hosts or 'no host'} alone"
        advice = f"{UNFINISHED} another folder; {JOIN}"
        raise RecordingError(expected_but_got("a whole recording", got, advice))
    launches = {origin.launch: rank for rank, origin in origins.items()}
    if len(launches) > 1:
        first, other, *_ = sorted(launches.values())
        got = f"{folder}, which two launches recorded, one rank {first} and one rank {other}"
        raise RecordingError(expected_but_got("files of one launch", got))


def _endings(unfinished: Mapping[int, Journaled], places: list[RankPlace]) -> Iterator[str]:
    """Yield in words where each rank has ended that has not finished, the first one first."""
    earliest = sorted(
        unfinished, key=lambda rank: (unfinished[rank].steps, bool(unfinished[rank].ended), rank)
    )
    for rank in earliest[:SHOWN]:
        left = unfinished[rank]
        why = f"by {left.ended}" if left.ended else UNKNOWN_END
        yield f"{places[rank]} ended after step {left.steps}, {why}"
    if len(earliest) > SHOWN:
        yield f"and {len(earliest) - SHOWN} other ranks, of {len(places)}, have not finished"
