"""What is no whole recording is refused, with what to do."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pytest_precision import RecordingError, whole
from pytest_precision.engine.engine import STEP_PHASES
from pytest_precision.probes.lost_updates.measured import UpdateMeter
from pytest_precision.trace.data_log import write_data
from pytest_precision.trace.files import OWN_FILES
from pytest_precision.trace.header import Header
from pytest_precision.trace.manifest import Manifest
from pytest_precision.trace.moment import END, INIT, Moment
from pytest_precision.trace.row_table import observed_in, table_in
from pytest_precision.trace.sealed import seals, signed
from pytest_precision.trace.whole_recording import whole_recording
from pytest_precision.trace.writer import TraceWriter

MOMENTS = [INIT, *(Moment(0, "train", 1, phase) for phase in (*STEP_PHASES, END))]


def write(folder: Path, rank: int, world_size: int) -> None:
    """Write what one rank has observed of one step."""
    with TraceWriter(folder, rank) as writer:
        for moment in MOMENTS:
            writer.add(moment, [whole("param", "a", torch.ones(9))])
        write_data(folder, rank)
        UpdateMeter().write(folder, rank)
        writer.finish(Header(world_size, {}, {}))


def record(folder: Path, order: Sequence[int], world_size: int = 2) -> None:
    """Make a recording whose ranks end in this order."""
    Manifest.now(folder / "train.py", [], 1, []).write(folder, world_size)
    for rank in order:
        write(folder, rank, world_size)
        Manifest.seal(folder, rank, world_size)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A recording of two ranks."""
    record(tmp_path, (0, 1))
    return tmp_path


def other(**changes: object) -> Callable[[Path], None]:
    """Return a change of `recording.json` by somebody who knows of its digest."""

    def changed(folder: Path) -> None:
        path = folder / "recording.json"
        content = json.loads(path.read_text())
        del content["digest"]
        path.write_text(json.dumps(signed(content | changes)))

    return changed


def text(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content)


CHANGES: dict[str, Callable[[Path], object]] = {
    "a whole recording but got .* which rank 1 of 2 has not finished": (
        lambda folder: (folder / "rank1.json").unlink()
    ),
    "a whole recording but got .* which its ranks have not finished": other(files={}),
    "a recording of format 3 but got format=1 .*record it again, or compare it with the release "
    "that made it, '0.0.9'": other(format=1, versions={"pytest-precision": "0.0.9"}),
    "a recording of format 3 but got format=True": other(format=True),
    "a recording of format 3 but got format=None": text("recording.json", "{}"),
    r"which has no recording\.json; make one with python -m": (
        lambda folder: (folder / "recording.json").unlink()
    ),
    r"damaged: ValueError: expected \d+ bytes of rank1\.bin but got 35": (
        lambda folder: (folder / "rank1.bin").write_bytes(b"\0" * 35)
    ),
    r"damaged: ValueError: expected \d+ bytes of rank0\.json but got 1": text("rank0.json", "{"),
    "damaged: JSONDecodeError": text("recording.json", "{"),
    r"expected an object in recording\.json but got list": text("recording.json", "[]"),
    r"expected at most 16777216 bytes of recording\.json": text(
        "recording.json", " " * (16 << 20 | 1)
    ),
    "expected world_size to be a whole number from 1 to 65536": other(world_size=10**8),
    "expected files to be an object of rank0.json": other(world_size=3, files={"a": [0, ""]}),
    r"recording\.json as it was written but got another digest": (
        lambda folder: (folder / "recording.json").write_text(
            (folder / "recording.json").read_text().replace("train.py", "trian.py")
        )
    ),
}


@pytest.mark.parametrize("message", CHANGES)
def test_what_is_not_whole_is_refused(folder: Path, message: str) -> None:
    """The message says what is wrong with it."""
    assert whole_recording("candidate", folder).cell.world_size == 2
    CHANGES[message](folder)
    with pytest.raises(RecordingError, match=message):
        whole_recording("candidate", folder)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A typing error in a path is the commonest one."""
    with pytest.raises(RecordingError, match=r"folder of a recording but got no .*/none; make one"):
        whole_recording("candidate", tmp_path / "none")


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_the_last_rank_makes_it_whole(tmp_path: Path, order: tuple[int, ...]) -> None:
    """Whichever that is; nothing of what the ranks leave for it stays."""
    record(tmp_path, order[:2], 3)
    with pytest.raises(RecordingError, match=f"rank {order[2]} of 3 has not finished"):
        whole_recording("candidate", tmp_path)
    write(tmp_path, order[2], 3)
    with pytest.raises(RecordingError, match="its ranks have not finished"):
        whole_recording("candidate", tmp_path)
    Manifest.seal(tmp_path, order[2], 3)
    assert whole_recording("candidate", tmp_path).cell.world_size == 3
    assert len([*tmp_path.iterdir()]) == 3 * 2 + 1


def test_what_says_the_same_is_the_same(folder: Path) -> None:
    """The digest of `recording.json` is one of what it says: a formatter may lay it out anew."""
    path = folder / "recording.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=2))
    assert whole_recording("candidate", folder).cell.world_size == 2


def as_format_2(path: Path) -> None:
    """Write an index as releases of format 2 did: each tensor of each moment in JSON."""
    index = json.loads(path.read_text())
    content = OWN_FILES.bytes(path.with_suffix(".bin"))
    slots, moments = observed_in(index, table_in(index, content))
    index["slots"] = [(*s[:5], ("chunk", *s.place.offsets), *s[6:]) for s in slots]
    index["moments"] = [
        (moment, [(slot, at) for slot, _, at, _ in rows.tolist()])
        for moment, rows in moments.items()
    ]
    for key in ("digest", "table", "kinds", "names", "forms"):
        del index[key]
    path.write_text(json.dumps(index))


def test_the_format_before_is_read_with_a_warning(folder: Path) -> None:
    """For one release: its indices name no digest, which was xxh3-128, and have no table."""
    before = whole_recording("candidate", folder).trace
    shown = [[*before.entries(moment)] for moment in before.moments]
    for rank in range(2):
        as_format_2(folder / f"rank{rank}.json")
    manifest = Manifest.read(folder)
    replace(manifest, format=2, files=seals(folder, 0) | seals(folder, 1)).write(folder, 2)
    with pytest.warns(FutureWarning, match="format 2, which the next release no longer reads"):
        trace = whole_recording("candidate", folder).trace
    assert trace.header.digest == "xxh3-128"
    assert [[*trace.entries(moment)] for moment in trace.moments] == shown


def test_a_digest_of_another_name_is_damage(folder: Path) -> None:
    """Nothing is known of it, so that nothing can be compared."""
    path = folder / "rank0.json"
    path.write_text(path.read_text().replace('"xxh3-128"', '"lin9-128"'))
    manifest = Manifest.read(folder)
    replace(manifest, files=seals(folder, 0) | seals(folder, 1)).write(folder, 2)
    with pytest.raises(RecordingError, match="a digest of lin8-128, xxh3-128 but got 'lin9-128'"):
        whole_recording("candidate", folder)
