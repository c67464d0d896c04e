"""A recording of a stranger, or of a bad disk, is refused: never believed, and never a crash."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edits import DEEP, ORIGIN, edited, equivalent, sealed_again
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from slack import slack

from pytest_precision import layouts
from pytest_precision.__main__ import main
from pytest_precision.matrix.declared import Declared
from pytest_precision.options import Settings
from pytest_precision.plugin.resources import Resources
from pytest_precision.probes.lost_updates.update_log import UpdateLog
from pytest_precision.ranks import ImportPath
from pytest_precision.ranks.needs import Needs
from pytest_precision.recorders.scripts import loop_trace
from pytest_precision.trace.data_log import DataLog
from pytest_precision.trace.rank_log import SealedLog
from pytest_precision.trace.rank_rows import ROW
from pytest_precision.trace.row_table import SLOT

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("PRECISION_EXAMPLES", "75"))
"""In CI; ci/nightly draws thousands."""

READER = Path(__file__).with_name("reader.py")

SCRIPT = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from pytest_precision import record

torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(5, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
start = 3 * dist.get_rank()
for step in range(2):
    loss = model(torch.randn(4, 5)).square().mean()
    record.see("part", "sharded", torch.arange(3.0) + start, of=((2, 3), start, start + 3))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    optimizer.zero_grad()
"""


@layouts.fresh_ranks
@layouts.may_leave("current directory", "process group of all ranks")
def recorded(folder: str) -> None:
    """Record the script on this rank as the command does: digests of all but one step."""
    os.chdir(folder)
    loop_trace.SMALL_RUN = 0
    main(["record", "--steps", "2", "--values", "1", "--out", "made", "--", "train.py"])


@pytest.fixture(scope="module")
def recording(resources: Resources, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of two ranks: shards and replicas, digests, and values of one step."""
    folder = tmp_path_factory.mktemp("stranger")
    (folder / "train.py").write_text(SCRIPT)
    needs = Needs.of(ImportPath.of(recorded), Declared.of(recorded))
    ranks = resources.ranks(Settings(timeout=120, device="cpu"))
    ranks.run(2, recorded, str(folder), needs=needs)
    return folder / "made"


class Reader:
    """A process that compares, and is started again where a signal has killed it."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        command = [sys.executable, str(READER)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def compare(self, candidate: Path, reference: Path, seconds: float) -> tuple[Any, str]:
        """Return the status and what was said; a crash and a hang have statuses of their own."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([str(candidate), str(reference)]) + "\n")
        there, _, _ = select.select([self.process.stdout], [], [], seconds)
        line = self.process.stdout.readline() if there else ""
        if line:
            status, said = json.loads(line)
            return status, said
        hung = "" if there else "hung, then "
        self.close()
        ended = f"{hung}ended by {self.process.returncode}"
        self.start()
        return ended, ""

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def reader(recording: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """The process, which has imported torch."""
    one = Reader()
    copied = tmp_path_factory.mktemp("equal") / "copy"
    shutil.copytree(recording, copied)
    status, said = one.compare(copied, recording, 100.0)
    assert (status, "agree" in said) == (0, True), said
    yield one
    one.close()


@pytest.mark.timeout(300 + 2 * EXAMPLES)
@given(st.data())
@settings(max_examples=EXAMPLES, database=None, suppress_health_check=[*HealthCheck])
def test_no_edit_is_believed(
    recording: Path, reader: Reader, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever was done to a file, it is refused; where its seal is right, there is an answer."""
    copied = tmp_path_factory.mktemp("edited") / "copy"
    shutil.copytree(recording, copied)
    try:
        name, how, again = data.draw(edited(copied))
        same = equivalent(recording, copied, name)
        for sides in ((copied, recording), (recording, copied)):
            status, said = reader.compare(*sides, slack())
            event(f"status {status}{', sealed again' * again}")
            event(f"{how} of {'*'.join(name.split('0'))}: {status}")
            assert status in (0, 1, 2), f"{how} of {name}: {status}"
            assert "Traceback" not in said
            assert "expected two recordings that can be compared" not in said, said
            if same:
                assert status == 0, said
            elif not again:
                assert status == 2, f"{how} of {name}: {said}"
                assert "error: expected" in said
    finally:
        shutil.rmtree(copied.parent)


def change(name: str, *path: Any, to: Any) -> Callable[[Path], object]:
    """Return an edit that puts a value into a place of a JSON file and seals it again."""

    def changed(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        inside = content
        for key in path[:-1]:
            inside = inside[key]
        inside[path[-1]] = to
        (folder / name).write_text(json.dumps(content).replace('"DEEP"', DEEP))
        sealed_again(folder, name)

    return changed


def log(kind: type[SealedLog], key: str, to: Any) -> Callable[[Path], object]:
    """Return an edit that adds a log of rank 0, which has nothing to say, with a value in it."""

    def changed(folder: Path) -> None:
        name = kind.file_of(0)
        (folder / name).write_text(json.dumps({**kind.nothing(), key: to}))
        sealed_again(folder, name)

    return changed


def table(column: str, to: int, dtype: np.dtype[Any] = ROW) -> Callable[[Path], object]:
    """Return an edit that puts a number into the first row of rank 0, or slot, and seals it."""

    def changed(folder: Path) -> None:
        index = json.loads((folder / "rank0.json").read_text())
        rows = sum(moment[-1] for moment in index["moments"])
        start = index["table"] + (rows * ROW.itemsize if dtype is SLOT else 0)
        content = bytearray((folder / "rank0.bin").read_bytes())
        np.frombuffer(content, dtype, 1, start)[column] = to
        (folder / "rank0.bin").write_bytes(content)
        sealed_again(folder, "rank0.bin")

    return changed


def pipe(folder: Path) -> None:
    (folder / "rank0.bin").unlink()
    os.mkfifo(folder / "rank0.bin")


def padding(folder: Path) -> None:
    content = bytearray((folder / "rank1.bin").read_bytes())
    content[63] ^= 1  # nothing that is compared: the first tensor, a bias, has 12 bytes
    (folder / "rank1.bin").write_bytes(content)


CRAFTED: dict[str, tuple[Callable[[Path], object], str]] = {
    "far offset": (table("first", (1 << 64) - (1 << 40)), "an offset of a tensor within"),
    "near offset": (table("first", 1 << 20), "an offset of a tensor within"),
    "odd offset": (table("first", 1), "an offset that is a multiple of"),
    "offset and digest": (table("second", 1), "an offset that is a multiple of"),
    "small digest": (table("digested", 1), "values of .* but got 'a digest'"),
    "neither": (table("digested", 2), "whether a row has a digest to be below 2"),
    "slot": (table("slot", (1 << 32) - 1), "the number of a slot to be below"),
    "kind": (table("kind", 999, SLOT), "the number of a kind to be below"),
    "name": (table("name", 999, SLOT), "the number of a name to be below"),
    "form": (table("form", (1 << 32) - 1, SLOT), "the number of a form to be below"),
    "table": (change("rank0.json", "table", to=0), "the offset of the table to be a whole"),
    "slots": (change("rank0.json", "slots", to=1 << 40), "a number of slots to be a whole number"),
    "slots 1.0": (change("rank0.json", "slots", to=1.0), "a number of slots to be a whole number"),
    "rows": (change("rank0.json", "moments", 1, 4, to=-1), "rows of a moment to be a whole"),
    "more rows": (change("rank0.json", "moments", 1, 4, to=1000), "the offset of the table to"),
    "dtype": (change("rank0.json", "forms", 0, 0, to="float3:"), "a dtype that this torch has"),
    "alias": (change("rank0.json", "forms", 0, 0, to="float"), "a dtype that this torch has"),
    "local": (change("rank0.json", "forms", 0, 4, to=1), "local to be true or false"),
    "huge shape": (change("rank0.json", "forms", 0, 2, to=[1 << 50] * 2), "elements to be a whole"),
    "span": (change("rank0.json", "forms", 0, 3, to=["span", 1 << 50]), "the place of a piece"),
    "span -7": (change("rank0.json", "forms", 0, 3, to=["span", -7]), "the start of a piece"),
    "place x": (change("rank0.json", "forms", 0, 3, to=["x", 0]), "the place of a piece"),
    "names": (change("rank0.json", "names", 0, to=7), "names to be a text"),
    "operation": (change("rank0.json", "moments", 1, 1, to="triin"), "the moment"),
    "phase": (change("rank0.json", "moments", 2, 3, to="reduce"), "the moment"),
    "step": (change("rank0.json", "moments", 2, 2, to=True), "the moment"),
    "no moments": (change("rank0.json", "moments", to=[]), "the moments of whole train steps"),
    "deep": (change("rank0.json", "forms", to="DEEP"), "RecursionError"),
    "deep origin": (change(ORIGIN, "script", to="DEEP"), "RecursionError"),
    "world_size": (change(ORIGIN, "world_size", to=10**8), "world_size to be a whole number"),
    "world_size 1.0": (change(ORIGIN, "world_size", to=2.0), "world_size to be a whole number"),
    "other ranks": (change("rank0.json", "world_size", to=1), "world_size of an index"),
    "piece": (log(UpdateLog, "steps", to=[[1, [[-1] + [0] * 6]]]), "number of a piece"),
    "data": (log(DataLog, "given", to={"x": []}), "the number of a step"),
    "missing": (lambda folder: (folder / "rank1.bin").unlink(), "No such file"),
    "pipe": (pipe, "a regular file but got rank0.bin"),
    "padding": (padding, "rank1.bin as it was written but got another digest"),
}


@pytest.mark.parametrize("what", CRAFTED)
def test_a_crafted_recording_is_refused(
    recording: Path, reader: Reader, tmp_path: Path, what: str
) -> None:
    """With its seals made right: the message names what cannot be."""
    copied = tmp_path / "copy"
    shutil.copytree(recording, copied)
    edit, message = CRAFTED[what]
    edit(copied)
    status, said = reader.compare(copied, recording, slack())
    assert status == 2, status or said
    assert re.search(message, " ".join(said.split())), said
    assert "whose files are damaged" in said


@pytest.mark.parametrize("what", ["deep", pytest.param("pipe", marks=pytest.mark.nightly)])
def test_the_command_ends_with_status_2(recording: Path, tmp_path: Path, what: str) -> None:
    """Status 1 would mean that the two differ, and that of a signal nothing.

    In a process of its own, as the reader's has seen other recordings before: what could overflow a
    stack, and what could wait.
    """
    copied = tmp_path / "copy"
    shutil.copytree(recording, copied)
    CRAFTED[what][0](copied)
    command = [sys.executable, "-m", "pytest_precision", "compare", str(copied), str(recording)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "whose files are damaged" in ended.stderr
    assert "Traceback" not in ended.stderr
