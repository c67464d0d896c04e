"""What several test folders need: checks without a pytest around them, one rank in this process."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import single_thread  # noqa: F401
from costs import Costs
from night_tables import ALL_TESTS
from recorded_cells import ParityOfRecordings, RecordedCells, SharedTraces

from pytest_precision import Cell, Parity
from pytest_precision.options import Settings
from pytest_precision.plugin.resources import Resources

SLOW = frozenset(
    {"parity", "parity_in", "parity_there", "pytester", "ranks", "resources", "subprocess"}
)
"""Fixtures and names of a test that starts processes: ranks, sessions of pytest, programs."""

STARTERS = frozenset({"RankPool", "launches", "psutil", "slack"})
"""What a module imports most of whose tests start processes."""


def pytest_configure(config: pytest.Config) -> None:
    """Measure each test where a JUnit file is written, by whoever runs tests."""
    if config.getoption("xmlpath") is not None and config.getoption("numprocesses", None) is None:
        config.pluginmanager.register(Costs())


def pytest_sessionstart() -> None:
    """Have sessions that tests start be ended like any other, also where this one may not be.

    A shell script has SIGINT ignored by what it starts in the background, `nohup` has SIGHUP, and
    their children inherit that.
    """
    for number, usual in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what `ci/test --quick` leaves out of files whose own module has not changed."""
    config.stash[ALL_TESTS] = [*items]
    for item in items:
        assert isinstance(item, pytest.Function)
        used = {*item.fixturenames, *item.function.__code__.co_names}
        if SLOW & used or STARTERS & {*vars(item.module)}:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave what was collected out of garbage collection, as ranks do with what they import.

    Nine thousand tests and torch have 400,000 objects, and all are looked at whenever an engine or
    a process group is let go in this process, and wherever a script is searched for its modules.
    """
    gc.collect()
    gc.freeze()


# Of a module, since the ranks that run inline need a process without a group.
@pytest.fixture(scope="module")
def _process_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    import torch.distributed as dist

    store = dist.FileStore(str(tmp_path_factory.mktemp("rendezvous") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def one_rank(_process_group: None) -> Iterator[None]:
    """A process group of this process alone, and the determinism that ranks run with."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


def forget_objects() -> None:
    """Leave what earlier tests have imported out of garbage collection, too.

    Whoever looks for copies of weights looks at all objects that the collector knows, which takes
    most of a second a step where those of pytest are among them.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def few_objects() -> None:
    """Have a script of this process looked for among few objects."""
    forget_objects()


@pytest.fixture(scope="session")
def recorded_cells(tmp_path_factory: pytest.TempPathFactory) -> RecordedCells:
    """Folders that all workers of the session share: what is slow to make is made once."""
    return RecordedCells.of_session(tmp_path_factory)


@pytest.fixture(scope="session")
def resources(recorded_cells: RecordedCells) -> Iterator[Resources]:
    """Rank groups and traces that all tests of the session share."""
    resources = Resources()
    resources._traces = SharedTraces(recorded_cells)
    yield resources
    resources.close()


@pytest.fixture
def run_on_ranks(resources: Resources) -> Callable[..., list[Any]]:
    """Run a function on so many ranks on the CPU, and return what each of them returned."""
    return resources.ranks(Settings(timeout=120, device="cpu")).run


@pytest.fixture
def parity_by(resources: Resources) -> Callable[..., Parity]:
    """The fixture `parity` of a test in the given cell, by the given settings."""

    def make(cell: Cell, **given: Any) -> Parity:
        if given.get("ranks") == "inline":
            forget_objects()
        # What these tests run depends on its arguments and its cell alone.
        settings = Settings(**{"timeout": 120, "device": "cpu", "pure": True, **given})
        return Parity("test", cell, settings, resources.ranks(settings), resources.traces)

    return make


@pytest.fixture
def parity_of_recordings(resources: Resources) -> Callable[..., Parity]:
    """As `parity_by`, with a candidate that is recorded once, as the reference is.

    For tests of what is done with recordings: judging, explaining, gates. Who plants a defect in a
    module, rather than in a layout of its own, takes `parity_by`.
    """

    def make(cell: Cell, **given: Any) -> Parity:
        settings = Settings(**{"timeout": 120, "device": "cpu", "pure": True, **given})
        ranks = resources.ranks(settings)
        return ParityOfRecordings("test", cell, settings, ranks, resources.traces)

    return make


@pytest.fixture
def parity_in(parity_by: Callable[..., Parity]) -> Callable[[Cell], Parity]:
    """The fixture `parity` of a test in the given cell, on real ranks, which names no lines."""
    return partial(parity_by, lines="off")


@pytest.fixture
def parity_there(
    parity_by: Callable[..., Parity], parity_in: Callable[[Cell], Parity]
) -> Callable[[Cell], Parity]:
    """The fixture `parity` of a test in the given cell: in this process if one rank is enough."""

    def make(cell: Cell) -> Parity:
        if cell.world_size > 1:
            return parity_in(cell)
        return parity_by(cell, lines="off", ranks="inline")

    return make
