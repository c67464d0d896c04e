"""What is no whole recording is refused, with what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pytest_precision.engine.observation import whole
from pytest_precision.errors import RecordingError
from pytest_precision.trace.moment import INIT
from pytest_precision.trace.origin import Origin
from pytest_precision.trace.recording import Recording
from pytest_precision.trace.store import Header
from pytest_precision.trace.writer import TraceWriter


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A recording of two ranks."""
    Origin.now(tmp_path / "train.py", [], 1, []).write(tmp_path, 2)
    for rank in range(2):
        with TraceWriter(tmp_path, rank) as writer:
            writer.add(INIT._replace(step=1), [whole("param", "a", torch.ones(9))])
            writer.close(Header(2, {}, {}))
    return tmp_path


def other_format(folder: Path) -> None:
    path = folder / "recording.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))


CHANGES: dict[str, Callable[[Path], object]] = {
    "a whole recording but got .* which rank 1 of 2 has not finished": (
        lambda folder: (folder / "rank1.json").unlink()
    ),
    "a recording of format 1 but got format=2 .* was made by": other_format,
    r"which has no recording\.json; make one with python -m": (
        lambda folder: (folder / "recording.json").unlink()
    ),
    r"damaged: ValueError: rank1\.bin has 35 of 36 bytes": (
        lambda folder: (folder / "rank1.bin").write_bytes(b"\0" * 35)
    ),
    "damaged: JSONDecodeError": lambda folder: (folder / "rank0.json").write_text("{"),
    "damaged: KeyError": lambda folder: (folder / "recording.json").write_text("{}"),
    "damaged: TypeError": lambda folder: (folder / "recording.json").write_text("[]"),
}


@pytest.mark.parametrize("message", CHANGES)
def test_what_is_not_whole_is_refused(folder: Path, message: str) -> None:
    """The message says what is wrong with it."""
    assert Recording.of_folder("candidate", folder).cell.world_size == 2
    CHANGES[message](folder)
    with pytest.raises(RecordingError, match=message):
        Recording.of_folder("candidate", folder)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A typing error in a path is the commonest one."""
    with pytest.raises(RecordingError, match=r"folder of a recording but got no .*/none; make one"):
        Recording.of_folder("candidate", tmp_path / "none")
