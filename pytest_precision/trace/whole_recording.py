"""Read a finished recording, after checking all its files for damage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_precision.errors import RecordingError, expected_but_got, is_bad_input
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.ways_in import RECORDING
from pytest_precision.trace.format_2 import expect_index_of_format_2
from pytest_precision.trace.header import Header
from pytest_precision.trace.manifest import JOIN, Manifest, damaged
from pytest_precision.trace.rank_log import sealed_logs
from pytest_precision.trace.rank_origin import FORMAT
from pytest_precision.trace.reader import Trace
from pytest_precision.trace.recording import Recording
from pytest_precision.trace.sealed import SealedFiles, files_of
from pytest_precision.trace.sound_index import expect_index

__tracebackhide__ = is_bad_input

SHOWN = 8
"""Ranks, or folders, that a message names."""

UNFINISHED = "its script still runs, failed, was killed or called os._exit; record it again into"
"""Why a rank may not have finished, up to where to."""


def whole_recording(name: str, folder: Path) -> Recording:
    """Check and read a recording that `record` made; raise if it is unfinished or damaged.

    Args:
        name: `candidate` or `reference`, or what else a message calls it.
        folder: that was recorded into.

    Raises:
        RecordingError: the folder holds none that is whole.
    """
    manifest = Manifest.read(folder)
    expect_complete(folder, manifest)
    try:
        return sound_recording(
            name, manifest, SealedFiles(folder, manifest.files, manifest.world_size)
        )
    except Exception as error:
        raise damaged(folder, error) from error


def sound_recording(name: str, manifest: Manifest, files: SealedFiles) -> Recording:
    """Check the content of a recording's files, and read the recording.

    Raises:
        ValueError: it names what cannot be.
    """
    folder = files.folder
    ranks = range(manifest.world_size)
    for rank in ranks:
        index, tensors = (folder / name for name in files_of(rank))
        fields, content = Header.__dataclass_fields__, files.bytes(tensors)
        if manifest.format == FORMAT:
            expect_index(files.data(index), fields, len(ranks), content)
        else:
            expect_index_of_format_2(files.data(index), fields, len(ranks), content.numel())
        for log in sealed_logs():
            log.expect_sound(files.data(folder / log.file_of(rank)))
    trace = Trace(folder, manifest.world_size, files=files)
    cell = Cell(sequence=f"train{trace.moments[-1].step}", world_size=manifest.world_size)
    return Recording(name, cell, trace, manifest, RECORDING)


def expect_complete(folder: Path, manifest: Manifest) -> None:
    """Raise if a rank has not finished writing a recording, naming such ranks.

    Raises:
        RecordingError: with the ranks.
    """
    ranks = range(manifest.world_size)
    names = {entry.name for entry in folder.iterdir()}
    missing = [rank for rank in ranks if f"rank{rank}.json" not in names]
    if not missing and manifest.files:
        return
    elsewhere = missing and not any(f"rank{rank}.bin" in names for rank in missing)
    raise RecordingError(
        expected_but_got(
            "a whole recording",
            f"{folder}, which "
            + (f"{some(missing)} of {manifest.world_size} has" if missing else "its ranks have")
            + " not finished",
            f"{UNFINISHED} another folder" + (f"; {JOIN}" if elsewhere else ""),
        )
    )


def some(ranks: Sequence[int]) -> str:
    """Return the first of some ranks in words."""
    return f"rank {', '.join(map(str, ranks[:SHOWN]))}{' and others' * (len(ranks) > SHOWN)}"
