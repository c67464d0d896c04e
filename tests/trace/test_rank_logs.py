"""Logs beside the traces: one file a rank, read as one log, by whoever asks for its class."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_precision import Cell
from pytest_precision.trace.header import Header
from pytest_precision.trace.moment import INIT
from pytest_precision.trace.rank_log import RankLog, RankPart, sealed_logs, shared_log
from pytest_precision.trace.recording import Recording
from pytest_precision.trace.segment_folders import folder_of
from pytest_precision.trace.writer import TraceWriter


@dataclass(frozen=True)
class Notes(RankLog):
    """A log that the package does not have."""

    words: tuple[str, ...]

    stem = "notes"

    @classmethod
    def merged(cls, parts: Iterable[RankPart]) -> Notes:
        return cls(tuple(f"{part.content} of {part.rank}" for part in parts))


class NotesOfRank0(Notes):
    """The same, of rank 0 alone, in runs that need not have one."""

    of_rank_0 = True

    @classmethod
    def absent(cls) -> NotesOfRank0:
        return cls(("none",))


def write(kind: type[RankLog], folder: Path, ranks: int) -> None:
    """Write a log of two parts of a run, the second of which new processes go on with."""
    for segment in range(2):
        place = folder_of(folder, segment)
        place.mkdir(exist_ok=True)
        for rank in range(ranks):
            kind.store(place, rank, f"part {segment}")


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    """A recording of two ranks in two parts, without logs."""
    cell = Cell(sequence="train-save-restart-train", world_size=2)
    for segment in range(2):
        place = folder_of(tmp_path, segment)
        place.mkdir(exist_ok=True)
        for rank in range(2):
            with TraceWriter(place, rank) as writer:
                writer.add(INIT, [])
                writer.finish(Header(2, {}, {}))
    return Recording.read("candidate", cell, tmp_path, None)


def test_a_recording_reads_any_log_once(recording: Recording, tmp_path: Path) -> None:
    """It knows none: of a new class it reads all ranks of all parts, when somebody asks."""
    write(Notes, tmp_path, ranks=2)
    log = recording.log(Notes)
    assert log.words == ("part 0 of 0", "part 0 of 1", "part 1 of 0", "part 1 of 1")
    (tmp_path / "notes0.json").unlink()
    assert recording.log(Notes) is log


@pytest.mark.parametrize("ranks", [0, 1])
def test_a_rank_without_its_log_is_an_error(
    recording: Recording, tmp_path: Path, ranks: int
) -> None:
    """Also where another rank has one: half of a log says nothing of the run."""
    write(Notes, tmp_path, ranks)
    with pytest.raises(FileNotFoundError, match=rf"notes{ranks}\.json"):
        recording.log(Notes)


def test_one_rank_may_write_for_all(recording: Recording, tmp_path: Path) -> None:
    """Its file has no number; a run without it has what the class says of one."""
    assert recording.log(NotesOfRank0).words == ("none",)
    write(NotesOfRank0, tmp_path, ranks=1)
    of_new = Recording.read("candidate", recording.cell, tmp_path, None).log(NotesOfRank0)
    assert of_new.words == ("part 0 of 0", "part 1 of 0")
    assert (tmp_path / "notes.json").exists()


def test_the_logs_that_are_named_by_a_path_are_there() -> None:
    """Nothing else imports them, so that nothing else would tell."""
    files = {log.file_of(3) for log in sealed_logs()}
    assert files == {"data3.json", "updates3.json", "judged3.json"}
    assert shared_log().file_of(3) == "gradients.json"
