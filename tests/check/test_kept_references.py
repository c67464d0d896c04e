"""A kept reference is recorded again when anything that it has read says something else."""

from __future__ import annotations

import contextlib
import json
import os
import py_compile
import socketserver
import sqlite3
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import reading
import torch

from pytest_precision import Cell, Parity, ParityError, command, layouts, workloads
from pytest_precision.options import Settings
from pytest_precision.ranks import RankPool
from pytest_precision.ranks.files import sources
from pytest_precision.ranks.files.sources import Sources
from pytest_precision.trace.cache import TraceCache

pytestmark = pytest.mark.slow

TINY = partial(workloads.mlp, width=5, depth=1)


class CountingCache(TraceCache):
    """A cache of traces that counts how often a reference is recorded."""

    recordings = 0

    def keep(self, key: Hashable, folder: Path, sources: Sources) -> bool:
        """Count what was recorded."""
        self.recordings += 1
        return super().keep(key, folder, sources)


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    """Ranks that all tests of this file share."""
    with closing(RankPool()) as pool:
        yield pool


@pytest.fixture
def traces() -> Iterator[CountingCache]:
    """A cache for each test."""
    with closing(CountingCache()) as traces:
        yield traces


@pytest.fixture
def check(pool: RankPool, traces: CountingCache) -> Callable[..., str]:
    """Check a candidate that knows its factor against a reference; return the outcome."""

    def check(
        reference: Callable[..., Any], factor: float, world_size: int = 1, **axes: Any
    ) -> str:
        cell = Cell(sequence="train2", world_size=world_size, extra=tuple(axes.items()))
        candidate = partial(reading.scaled, factor=factor)
        return outcome(Parity("test", cell, Settings(), pool, traces), candidate, reference)

    return check


def outcome(parity: Parity, candidate: Any, reference: Any, workload: Any = TINY) -> str:
    with contextlib.suppress(ParityError):
        parity.check(candidate, reference, workload=workload)
    verdict = parity.verdicts[-1]
    assert verdict.outcome in ("pass", "fail"), verdict
    return verdict.outcome


def rewritten(file: Path, content: str) -> None:
    """Write a file anew so that neither its size nor its time tells."""
    before = file.stat()
    file.write_text(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size


READERS = {
    "from_text": "1.0",
    "from_helper": "FACTOR = 1.0",
    "from_memory": "1.0",
    "from_memmap": "1.0",
    "from_numpy": "1.0",
    "from_default": "1.0",
}


@pytest.mark.parametrize("name", READERS)
def test_a_file_that_says_something_else(
    check: Callable[..., str],
    traces: CountingCache,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """A file written anew, with the same size and time, is read again; else nothing is recorded."""
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / f"read_{name}.py"
    file.write_text(READERS[name])
    reference = partial(getattr(reading, name), file=str(file))
    assert check(reference, 1.0) == "pass"
    assert check(reference, 1.0) == "pass"
    assert traces.recordings == 1
    rewritten(file, READERS[name].replace("1.0", "2.0"))
    assert check(reference, 1.0) == "fail"
    assert check(reference, 2.0) == "pass"


def test_bytecode_of_an_earlier_source_is_not_run(
    check: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytecode that is older than a source of its size and second is not taken for that source."""
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "helper_of_two.py"
    file.write_text("FACTOR = 1.0")
    compiled = Path(py_compile.compile(str(file)))  # type: ignore[arg-type]
    file.write_text("FACTOR = 2.0")
    written = file.stat()
    # The bytecode names size and seconds of the source, which are those of the new one.
    content = bytearray(compiled.read_bytes())
    content[8:12] = int(written.st_mtime).to_bytes(4, "little")
    compiled.write_bytes(content)
    os.utime(compiled, ns=(written.st_mtime_ns, written.st_mtime_ns - 1))
    assert check(partial(reading.from_helper, file=str(file)), 2.0) == "pass"


def test_a_file_that_was_absent(check: Callable[..., str], tmp_path: Path) -> None:
    """A file that a side has looked for in vain is one that it has read."""
    reference = partial(reading.from_default, file=str(tmp_path / "override"))
    assert check(reference, 2.0) == "pass"
    (tmp_path / "override").write_text("1.0")
    assert check(reference, 1.0) == "pass"


def test_a_folder_with_other_files(check: Callable[..., str], tmp_path: Path) -> None:
    """The names in a folder that a side lists are what it has read."""
    reference = partial(reading.from_folder, file=str(tmp_path / "1"))
    for number in (1, 2):
        (tmp_path / str(number)).touch()
        assert check(reference, float(number)) == "pass"


def test_a_database_with_other_rows(check: Callable[..., str], tmp_path: Path) -> None:
    """A database is a file that is read, though not by Python."""
    file = tmp_path / "factors"
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("create table factors (factor real)")
        database.execute("insert into factors values (1.0)")
    reference = partial(reading.from_database, file=str(file))
    assert check(reference, 1.0) == "pass"
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("update factors set factor = 2.0")
    assert check(reference, 2.0) == "pass"


def test_the_same_name_in_another_directory(
    check: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative name is another file after a change of directory, also for ranks that are kept."""
    for factor in (1.0, 2.0):
        folder = tmp_path / str(factor)
        folder.mkdir()
        (folder / "config").write_text(str(factor))
        monkeypatch.chdir(folder)
        for reader in (reading.from_text, reading.from_memory):
            assert check(partial(reader, file="config"), factor) == "pass"


def script_check(pool: RankPool, traces: TraceCache) -> Parity:
    return Parity("test", Cell(sequence="train2"), Settings(), pool, traces)


def test_a_script_that_is_written_anew(
    pool: RankPool, traces: CountingCache, tmp_path: Path
) -> None:
    """The file of a command is read, so that a reference of an earlier text is recorded again."""
    new, old = tmp_path / "new.py", tmp_path / "old.py"
    new.write_text(reading.SCRIPT.format(lr=0.01))
    for lr, expected in ((0.01, "pass"), (0.02, "fail")):
        old.write_text(reading.SCRIPT.format(lr=lr))
        sides = command(new), command(old)
        assert outcome(script_check(pool, traces), *sides, workload=None) == expected


def test_a_configuration_that_a_script_reads(
    pool: RankPool, traces: CountingCache, tmp_path: Path
) -> None:
    """What a command reads is read: both sides get the new configuration, and agree."""
    file, config = tmp_path / "train.py", tmp_path / "config.json"
    file.write_text(reading.SCRIPT.format(lr="json.loads(Path(sys.argv[1]).read_text())"))
    for lr in (0.01, 0.02):
        config.write_text(json.dumps(lr))
        sides = command(file, config), command(file, config, "again")
        assert outcome(script_check(pool, traces), *sides, workload=None) == "pass"
    assert traces.recordings == 2


UNSEEN = (
    "from_mapping",
    "from_descriptor",
    "from_command",
    "from_fork",
    "from_shell",
    "removing",
    "writing",
)


@pytest.mark.parametrize("name", UNSEEN)
def test_what_cannot_be_known_is_not_kept(
    check: Callable[..., str], traces: CountingCache, tmp_path: Path, name: str
) -> None:
    """A side that reads what Python does not open, or changes what it reads, is recorded again."""
    file = tmp_path / "factor"
    reference = partial(getattr(reading, name), file=str(file))
    for factor in (1.0, 2.0):
        file.write_text(str(factor))
        assert check(reference, factor) == "pass"
    file.write_text("2.0")
    assert check(reference, 2.0) == "pass"
    assert traces.recordings == 3


def test_a_pipe_with_a_name_is_not_read_twice(
    check: Callable[..., str], traces: CountingCache, tmp_path: Path
) -> None:
    """Only regular files are compared, since others may wait for a writer."""
    os.mkfifo(tmp_path / "pipe")
    for _ in range(2):
        assert check(partial(reading.from_fifo, file=str(tmp_path / "pipe")), 1.0) == "pass"
    assert traces.recordings == 2


@pytest.mark.parametrize(
    ("size", "recordings"), [(sources.COMPARED_BYTES, 1), (sources.COMPARED_BYTES + 1, 2)]
)
def test_a_large_file_is_not_compared(
    check: Callable[..., str], traces: CountingCache, tmp_path: Path, size: int, recordings: int
) -> None:
    """Up to the documented size a file is compared; a side that reads a larger one is not kept."""
    with (tmp_path / "data").open("wb") as file:
        file.write(b"1.0")
        file.truncate(size)
    for _ in range(2):
        assert check(partial(reading.from_beginning, file=str(tmp_path / "data")), 1.0) == "pass"
    assert traces.recordings == recordings


class Answer(socketserver.BaseRequestHandler):
    """Sends the number of connections so far."""

    def handle(self) -> None:
        """Count, and send."""
        self.server.answers += 1  # type: ignore[attr-defined]
        self.request.sendall(str(float(self.server.answers)).encode())  # type: ignore[attr-defined]


def test_what_comes_from_the_network_is_not_kept(check: Callable[..., str], tmp_path: Path) -> None:
    """A server may say something else each time."""
    with socketserver.TCPServer(("127.0.0.1", 0), Answer) as server:
        server.answers = 0  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        (tmp_path / "address").write_text(json.dumps(server.server_address))
        reference = partial(reading.from_socket, file=str(tmp_path / "address"))
        assert [check(reference, float(number)) for number in (1, 2)] == ["pass", "pass"]
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("world_size", [1, 2])
def test_what_a_side_makes_itself_does_not_count(
    check: Callable[..., str], traces: CountingCache, tmp_path: Path, world_size: int
) -> None:
    """A reference is kept though it writes, renames, lists, saves, loads and logs."""
    (tmp_path / "factor").write_text("1.0")
    reference = partial(reading.making, file=str(tmp_path / "factor"))
    for _ in range(2):
        assert check(reference, 1.0, world_size) == "pass"
    assert traces.recordings == 1


def test_another_import_path_is_another_reference(
    check: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same name of a helper is another module where `sys.path` finds another file."""
    reference = partial(reading.from_helper, file="helper_on_path")
    for factor in (1.0, 2.0):
        folder = tmp_path / str(factor)
        folder.mkdir()
        (folder / "helper_on_path.py").write_text(f"FACTOR = {factor}")
        with monkeypatch.context() as patch:
            patch.syspath_prepend(folder)
            assert check(reference, factor) == "pass"


def of_axis(workload: Any, cell: Cell) -> Any:
    """A buffer is made of the value of an axis."""
    engine = layouts.adamw(workload, cell)
    engine.model.register_buffer("x", torch.tensor(cell.v))
    return engine


def of_constant(workload: Any, cell: Cell, value: object) -> Any:
    """A buffer is made of a value that is given."""
    engine = layouts.adamw(workload, cell)
    engine.model.register_buffer("x", torch.tensor(value))
    return engine


@pytest.mark.parametrize("values", [(1, 1.0, True), (0.0, -0.0)], ids=["types", "signs"])
def test_equal_values_of_an_axis_are_different_cells(
    pool: RankPool, traces: CountingCache, values: tuple[object, ...]
) -> None:
    """A reference of the axis value 1 serves neither 1.0 nor True, and one of 0.0 not -0.0."""
    for value in values:
        parity = Parity(
            "test", Cell(sequence="train2", extra=(("v", value),)), Settings(), pool, traces
        )
        assert outcome(parity, partial(of_constant, value=value), of_axis) == "pass"
        other = partial(of_constant, value=values[0])
        assert outcome(parity, other, of_axis) == ("pass" if value is values[0] else "fail")


def test_cells_are_equal_by_type_and_text() -> None:
    """Cells with 1, 1.0 and True, or 0.0 and -0.0, are neither equal nor one key."""
    cells = [Cell(extra=(("v", value),)) for value in (1, 1.0, True, 0.0, -0.0, "1", None)]
    assert len(set(cells)) == len(cells)
    assert [cell == other for cell in cells for other in cells].count(True) == len(cells)
    assert cells[0] == Cell(extra=(("v", 1),))
    assert cells[0] != "1"


def test_the_same_layout_on_equal_values_is_compared(pool: RankPool, traces: CountingCache) -> None:
    """A reference cell with 1.0 in the place of 1 is another cell, not the same one again."""
    parity = Parity("test", Cell(sequence="train2", extra=(("v", 1),)), Settings(), pool, traces)
    with pytest.raises(ParityError, match="int64 here, float32 in the reference"):
        parity.check(of_axis, of_axis, workload=TINY, reference_cell=parity.cell.replace(v=1.0))
