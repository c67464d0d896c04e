"""Of a recording that a rank has not finished, whole steps can be read, and no cut looks whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pytest_precision import RecordingError, whole
from pytest_precision.engine.engine import STEP_PHASES
from pytest_precision.trace.header import Header
from pytest_precision.trace.manifest import Manifest
from pytest_precision.trace.moment import INIT, Moment
from pytest_precision.trace.rank_log import sealed_logs
from pytest_precision.trace.rank_origin import RankOrigin
from pytest_precision.trace.sealed import read_seals
from pytest_precision.trace.unfinished import readable_recording
from pytest_precision.trace.writer import TraceWriter

STEPS = 3


def write(folder: Path, rank: int, steps: int, *, finished: bool) -> None:
    """Write what a rank shows in some steps: values, digests, and a tensor that comes late."""
    header = Header(2, {}, {}, digests=True)
    origin = RankOrigin.of_process("launch")
    with TraceWriter(folder, rank, digests=True, origin=origin) as writer:
        writer.add(INIT, [whole("param", "a", torch.ones(9))])
        for step in range(1, steps + 1):
            for phase in STEP_PHASES:
                tensors = [whole("param", f"b{n}", torch.full((99,), step)) for n in range(step)]
                small = whole("loss", "loss", torch.tensor(float(step)))
                writer.add(Moment(step - 1, "train", step, phase), [small, *tensors])
            writer.settle(lambda: (header, {}))
        if finished:
            writer.add(Moment(steps - 1, "train", steps, "end"), [])
            writer.finish(header)
    if finished:
        for log in sealed_logs():
            log.store(folder, rank, log.nothing())
        Manifest.seal(folder, rank, 2, origin)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A recording of two ranks, of which the second has not finished."""
    Manifest.now(tmp_path / "train.py", [], STEPS, []).write(tmp_path, 2)
    write(tmp_path, 0, STEPS, finished=True)
    write(tmp_path, 1, STEPS - 1, finished=False)
    return tmp_path


def shown(folder: Path) -> list[object]:
    """Return all observations of a recording, without where their bytes lie."""
    trace = readable_recording("candidate", folder).trace
    return [
        (moment, entry._replace(offset=None), trace.digest_of(entry, "xxh3-128"))
        for moment in trace.moments
        for entry in trace.entries(moment)
    ]


def test_whole_steps_are_those_of_a_rank_that_finishes(folder: Path, tmp_path: Path) -> None:
    """Bit for bit, of both ranks; a rank that had more steps is cut."""
    other = tmp_path / "other"
    other.mkdir()
    Manifest.now(tmp_path / "train.py", [], STEPS - 1, []).write(other, 2)
    for rank in range(2):
        write(other, rank, STEPS - 1, finished=True)
    assert shown(folder) == shown(other)
    recording = readable_recording("candidate", folder)
    assert recording.cell.sequence == f"train{STEPS - 1}"
    (ending,) = recording.endings
    assert ending.startswith(f"rank 1 ended after step {STEPS - 1}, and has not said why")


def test_a_rank_that_finished_early_limits_the_steps(tmp_path: Path) -> None:
    """No step is compared that one of the ranks has not made."""
    Manifest.now(tmp_path / "train.py", [], STEPS, []).write(tmp_path, 2)
    write(tmp_path, 0, 1, finished=True)
    write(tmp_path, 1, STEPS, finished=False)
    assert readable_recording("candidate", tmp_path).cell.sequence == "train1"


def cuts(content: bytes) -> Iterator[bytes]:
    """Yield shorter versions of a file, and such with another byte."""
    for end in range(0, len(content), 131):
        yield content[:end]
    for at in range(0, len(content), 29):
        yield content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize("name", ["rank1.journal", "rank1.bin"])
def test_no_cut_looks_whole(folder: Path, name: str) -> None:
    """Wherever a file ends or is damaged, fewer steps are read and it is said, or it is refused."""
    path = folder / name
    content = path.read_bytes()
    right = shown(folder)
    answers = set()
    for cut in cuts(content):
        path.write_bytes(cut)
        try:
            recording = readable_recording("candidate", folder)
        except RecordingError:
            answers.add("refused")
            continue
        assert recording.endings
        steps = len(recording.cell.operations)
        answers.add(f"{steps} steps")
        assert shown(folder) == [entry for entry in right if entry[0].step <= steps]
    assert {"refused", "1 steps"} <= answers


def test_a_rank_without_a_whole_step_is_named(folder: Path) -> None:
    """Then nothing can be compared."""
    path = folder / "rank1.journal"
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(RecordingError, match=r"in which rank 1 \(.*\) has none"):
        readable_recording("candidate", folder)
    path.unlink()
    with pytest.raises(
        RecordingError, match=r"which rank 1 of 2 has not finished; it has ranks of"
    ):
        readable_recording("candidate", folder)


def edit(folder: Path, **changes: object) -> None:
    """Change what rank 0 says of the origin of its files."""
    path = folder / "seal0.json"
    content = json.loads(path.read_text())
    content["origin"] |= changes
    path.write_text(json.dumps(content))


def test_ranks_of_two_releases_are_refused(folder: Path) -> None:
    """With their hosts; a later one may say more of an origin."""
    edit(folder, release="9.0", format=9, host="node-a", more="")
    here = read_seals(folder, 0)[0]
    assert here.host == "node-a"
    with pytest.raises(
        RecordingError,
        match=r"format 9 of release 9\.0 on rank 0 \(node-a\) and format 3 of release .* on rank 1",
    ):
        readable_recording("candidate", folder)


def test_ranks_of_two_launches_are_refused(folder: Path) -> None:
    """Such as where two runs had one folder on two nodes, whose files were put together."""
    edit(folder, launch="other")
    with pytest.raises(RecordingError, match="two launches recorded, one rank 0 and one rank 1"):
        readable_recording("candidate", folder)
