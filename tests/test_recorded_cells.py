"""What is recorded once a session is found by all that its bits depend on, and by nothing less."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from recorded_cells import CellKey, ParityOfRecordings, RecordedCells, SharedTraces, digest_of

from pytest_precision import Cell, Parity, layouts, workloads
from pytest_precision.check.side import Side
from pytest_precision.matrix.declared import Declared
from pytest_precision.options import Settings
from pytest_precision.ranks import ImportPath, RankPool
from pytest_precision.ranks.state.environment import Environment
from pytest_precision.recorders.variant import Variant
from pytest_precision.trace.moment import LogRequest, Window

pytestmark = pytest.mark.slow

CELL = Cell(sequence="train1")


def side(
    layout: Any = layouts.adamw, workload: Any = workloads.mlp, cell: Cell = CELL, **more: Any
) -> Side:
    """Return a side whose reference is AdamW."""
    own, other = ImportPath.of(layout), ImportPath.of(layouts.adamw)
    return Side.of(own, other, ImportPath.of(workload), cell, **more)


SIDE = side()

KEY = CellKey.of(SIDE, None)

CHANGES: dict[str, Any] = {
    "delays": 1,
    "ends_only": True,
    "noise": 1,
    "start": 1,
    "logged": LogRequest(0, 1),
    "beside_exact": True,
    "gradients": False,
    "updates": False,
    "bare": True,
}
"""Each field of a variant, with what it is in no usual run."""

VARIANTS = [Variant(**{name: change}) for name, change in CHANGES.items()]

OTHERS: dict[str, list[CellKey]] = {
    "layout": [
        CellKey.of(side(layouts.ddp), None),
        CellKey.of(replace(SIDE, other=SIDE.layout), None),
    ],
    "workload": [
        CellKey.of(side(workload=workloads.gpt), None),
        CellKey.of(side(workload=partial(workloads.mlp, width=5)), None),
    ],
    "cell": [
        CellKey.of(side(cell=Cell(sequence="train2")), None),
        CellKey.of(side(cell=CELL.replace(world_size=2)), None),
        CellKey.of(side(cell=CELL.replace(precision="bf16")), None),
        CellKey.of(SIDE, Window(1, 1)),
    ],
    "settings": [
        *(CellKey.of(SIDE.varied(variant), None) for variant in VARIANTS),
        CellKey.of(side(declared=Declared(environment=(("NAME", "1"),))), None),
        CellKey.of(side(caller=Environment(frozenset({("NAME", "1")}))), None),
        CellKey.of(side(declared=Declared(warn_only=True)), None),
        CellKey.of(SIDE, None, "/another/folder"),
    ],
    "package": [replace(KEY, package="0")],
    "versions": [replace(KEY, versions="3.9.0 2.0.0")],
}


@pytest.fixture
def cells(tmp_path: Path) -> RecordedCells:
    """A store that nobody has put anything into."""
    return RecordedCells(tmp_path)


def test_every_part_of_the_key_has_another_value_here() -> None:
    """A part that is new needs an entry, and so does a field of a variant."""
    assert [*OTHERS] == [field.name for field in fields(CellKey)]
    assert [*CHANGES] == [field.name for field in fields(Variant)]


@pytest.mark.parametrize("part", OTHERS)
def test_every_part_of_the_key_counts(cells: RecordedCells, part: str) -> None:
    """What differs in one part alone is another recording."""
    recorded: list[str] = []
    for key in (KEY, *OTHERS[part], KEY):
        cells.made(key.name, lambda folder: recorded.append(folder.name))
        assert replace(key, **{part: getattr(KEY, part)}) == KEY
    assert len(recorded) == 1 + len(OTHERS[part])


def test_the_key_is_the_same_in_all_workers() -> None:
    """What pytest tells a worker of its number changes no bit, nor does the order of variables."""
    pairs = [(f"NAME{number}", "1") for number in range(9)]
    ours, theirs = (
        side(caller=Environment(frozenset([*order, ("PYTEST_XDIST_WORKER", worker)])))
        for order, worker in ((pairs, "gw0"), (pairs[::-1], "gw1"))
    )
    assert CellKey.of(ours, None) == CellKey.of(theirs, None)


def test_the_content_of_the_package_counts(tmp_path: Path) -> None:
    """Each file by its name and its bytes; where it is installed says nothing."""
    digests = []
    for number, (name, text) in enumerate([("a", "1"), ("a", "1"), ("a", "2"), ("b", "1")]):
        (tmp_path / str(number) / "inside").mkdir(parents=True)
        (tmp_path / str(number) / "inside" / f"{name}.py").write_text(text)
        digests.append(digest_of(tmp_path / str(number)))
    assert digests[0] == digests[1]
    assert len({*digests}) == 3


def test_one_worker_makes_what_all_wait_for(cells: RecordedCells) -> None:
    """Nobody sees it before it is whole, and nobody makes it twice."""
    made, workers = [], []

    def make(folder: Path) -> None:
        made.append(folder)
        for worker in workers[1:]:
            worker.start()
        (folder / "file").write_text("whole")

    def work() -> None:
        found.append((cells.made("name", make) / "file").read_text())

    found: list[str] = []
    workers += [threading.Thread(target=work) for _ in range(4)]
    workers[0].start()
    workers[0].join()
    for worker in workers[1:]:
        worker.join()
    assert (found, len(made)) == (["whole"] * 4, 1)


def test_what_was_not_made_whole_is_made_again(cells: RecordedCells) -> None:
    """A worker that fails, or is killed, leaves nothing that another one believes."""

    def fails(folder: Path) -> None:
        (folder / "half").write_text("")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        cells.made("name", fails)
    assert cells.find("name") is None
    made = cells.made("name", lambda folder: (folder / "whole").write_text(""))
    assert os.listdir(made) == ["whole"]


class NoRanks(RankPool):
    """Ranks that nobody may ask."""

    def run(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Fail."""
        raise AssertionError("recorded once more")


def planted(workload: Any, cell: Cell) -> Any:
    """A layout of a test."""
    return layouts.adamw(workload, cell)


Check = Callable[..., object]


@pytest.fixture
def check(run_on_ranks: Callable[..., Any], cells: RecordedCells) -> Check:
    """Check a sound layout as another worker of the session does, with ranks or without."""
    ranks: RankPool = run_on_ranks.__self__  # type: ignore[attr-defined]

    def check(candidate: Any, *, without_ranks: bool = False) -> object:
        with closing(SharedTraces(cells)) as traces, closing(NoRanks()) as none:
            settings = Settings(pure=True, lines="off")
            pool = none if without_ranks else ranks
            parity = ParityOfRecordings("test", CELL, settings, pool, traces)
            return parity.check(candidate, layouts.adamw, workload=workloads.mlp).observations

    return check


def test_another_worker_reads_what_one_has_recorded(check: Check) -> None:
    """Both sides, without asking a rank, and with the same tensors."""
    assert check(layouts.ddp) == check(layouts.ddp, without_ranks=True)


def test_what_has_code_of_a_test_is_recorded_by_each_worker(check: Check) -> None:
    """A defect is planted there, and the module of it may change."""
    check(planted)
    with pytest.raises(AssertionError, match="recorded once more"):
        check(planted, without_ranks=True)


def test_a_parity_of_its_own_records_its_candidate(
    check: Check, cells: RecordedCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only who asks for recordings reads those of a candidate."""
    check(layouts.ddp)
    monkeypatch.setattr(ParityOfRecordings, "make_recordings", Parity.make_recordings)
    with pytest.raises(AssertionError, match="recorded once more"):
        check(layouts.ddp, without_ranks=True)
