"""What the fixtures `parity` and `ranks` give to a test, and what its reports contain."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_precision.check.parity import Parity
from pytest_precision.errors import ParityError, RanksSkipped, WorldSizeError
from pytest_precision.matrix.axis_reads import axes_read
from pytest_precision.matrix.cell import Cell, axes_of
from pytest_precision.matrix.declared import Declared, declares_pure
from pytest_precision.options import Settings
from pytest_precision.plugin.collected import collected_for
from pytest_precision.plugin.collection import is_drawn
from pytest_precision.plugin.launched import HOSTS
from pytest_precision.plugin.marker import CELL
from pytest_precision.plugin.registration import registered_by
from pytest_precision.plugin.resources import Resources
from pytest_precision.ranks.code.import_path import ImportPath
from pytest_precision.ranks.needs import Needs
from pytest_precision.ranks.pool import RankPool
from pytest_precision.ranks.state.definitions import Definitions
from pytest_precision.report import report_attributes

PARITY = pytest.StashKey[Parity]()
RESOURCES = pytest.StashKey[Resources]()
DEFINITIONS = pytest.StashKey[Definitions]()


class Ranks:
    """The fixture `ranks`: runs functions of a test on several processes.

    Attributes:
        world_size: number of ranks.
    """

    def __init__(
        self,
        ranks: RankPool,
        world_size: int,
        settings: Settings,
        request: pytest.FixtureRequest,
    ) -> None:
        self.world_size = world_size
        self._ranks = ranks
        self._settings = settings
        self._request = request

    @property
    def shared_path(self) -> Path:
        """A folder in the test's `tmp_path` that all ranks of the test can see.

        Pass it to the function: `ranks.run(function, ranks.shared_path)`.
        """
        path: Path = self._request.getfixturevalue("tmp_path") / "ranks"
        path.mkdir(exist_ok=True)
        return path

    def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a module-level function once on every rank; all ranks share one process group.

        The test is skipped if all ranks skip, or if so many ranks cannot run here.

        Args:
            function: function to call, which gets its rank from `torch.distributed`. Variables that
                it declares by `layouts.with_environment` are set before its ranks start.
            args: positional arguments of every call; they are sent to the ranks, so they must
                pickle.
            kwargs: keyword arguments of every call, which must pickle too.

        Returns:
            The results in rank order.

        Raises:
            RankError: a rank raised, died or hung, or skipped while others did not.
            TypeError: the function has no import path, or an argument does not pickle.
        """
        __tracebackhide__ = True
        # With a partial, a keyword argument may have any name.
        bound = functools.partial(function, *args, **kwargs) if callable(function) else function
        path = ImportPath.of(bound, "function")
        declared = replace(
            Declared.of(function).allowing(self._settings.may_leave),
            pure=self._settings.pure or declares_pure(function),
        )
        for skip in registered_by(self._request.config).functions("skips"):
            skip(declared, self._settings, self._ranks.device)
        try:
            return self._ranks.run(
                self.world_size,
                path,
                timeout=self._settings.timeout,
                needs=Needs.of(path, declared, collected_for(self._request.node)),
            )
        except (RanksSkipped, WorldSizeError) as error:
            if self._settings.require and isinstance(error, WorldSizeError):
                pytest.fail(f"{error}, which --precision-require forbids", pytrace=False)
            pytest.skip(str(error))
        finally:
            self._ranks.end_check()


def parity_fixture(request: pytest.FixtureRequest, cell: Cell, settings: Settings) -> Parity:
    """Return the fixture `parity` of a test, and store it for the test's reports."""
    claims = _claims_folder(request) if settings.baseline == "update" else None
    return parity_of(request.node, cell, settings, claims)


def parity_of(
    item: pytest.Item, cell: Cell, settings: Settings, claims: Path | None = None
) -> Parity:
    """Return what a test trains and compares both sides with, and store it for the test's reports.

    Args:
        item: the test.
        cell: the cell that it runs in.
        settings: of the test.
        claims: see `CheckedTest`.
    """
    shared = _resources(item.config)
    parity = Parity(
        item.nodeid,
        cell,
        settings,
        shared.ranks(settings),
        shared.traces,
        root=item.config.rootpath,
        definitions=item.config.stash.get(DEFINITIONS, None),
        collected=collected_for(item),
        claims=claims,
        registered=registered_by(item.config),
    )
    item.stash[PARITY] = parity
    return parity


def _claims_folder(request: pytest.FixtureRequest) -> Path:
    """Return the folder in which this session notes which check writes which baseline.

    The workers of xdist share it.
    """
    folder: Path = request.getfixturevalue("tmp_path_factory").getbasetemp()
    is_worker = hasattr(request.config, "workerinput")
    return (folder.parent if is_worker else folder) / "precision-baselines"


def ranks_fixture(request: pytest.FixtureRequest, settings: Settings) -> Ranks:
    """Return the fixture `ranks`, with as many ranks as the marker `world_size` says."""
    item = request.node
    marker = item.get_closest_marker("world_size")
    got = "no marker" if marker is None else _arguments(marker)
    match marker:
        case pytest.Mark(args=(int(size),), kwargs={**none}) if size > 0 and not none:
            shared = _resources(item.config).ranks(settings)
            return Ranks(shared, size, settings, request)
    pytest.fail(
        f"{item.nodeid}: expected a marker with one int from 1 but got {got}; "
        "write @pytest.mark.world_size(2)",
        pytrace=False,
    )


def take_in_definitions(config: pytest.Config) -> None:
    """Save the functions and classes of newly imported modules, to find what tests patch later."""
    if DEFINITIONS in config.stash:
        config.stash[DEFINITIONS].take_in()
    else:
        config.stash[DEFINITIONS] = Definitions()


def require_check(item: pytest.Item) -> None:
    """Fail a test that used the fixture `parity` and passed without a check."""
    if PARITY in item.stash and not item.stash[PARITY].verdicts:
        pytest.fail(
            "vacuous: the test asked for `parity` and made no check; "
            "call parity.check(...), or ask for `cell` alone",
            pytrace=False,
        )


def attach_verdicts(
    report: pytest.TestReport,
    item: pytest.Item,
    cell: Cell,
    total: int,
    error: pytest.ExceptionInfo[BaseException] | None,
) -> None:
    """Store axis values and check results of a matrix test on its pytest report.

    Args:
        report: report of `item`.
        item: the test.
        cell: cell that the test runs in.
        total: number of cells in this session.
        error: what ended the phase, if anything.
    """
    assert isinstance(item, pytest.Function)
    parity = item.stash.get(PARITY, None)
    verdicts = parity.verdicts if parity else []
    raised = [] if error is None else [failure.verdict for failure in _parity_errors(error.value)]
    report_attributes.attach(
        report,
        item,
        axes=axes_of(cell) | ({"sequence": "drawn"} if is_drawn(item) else {}),
        verdicts=[verdict.as_dict() for verdict in verdicts],
        raised=[
            n
            for n, verdict in enumerate(verdicts)
            if any(verdict is raised_verdict for raised_verdict in raised)
        ],
        number=item.callspec.indices[CELL],
        total=total,
        unread=unread(item, cell),
    )


def short_failure(
    report: pytest.TestReport, error: pytest.ExceptionInfo[BaseException] | None
) -> None:
    """Reduce pytest's short summary of a failed check to the verdict's first line.

    In CI pytest does not cut it there, and all tables of a failure were printed twice. What the
    terminal shows without -v goes with the report, for when all others have read it whole.
    """
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None and error is not None and isinstance(error.value, ParityError):
        verdict = error.value.verdict
        crash.message = verdict.headline
        if verdict.brief:
            vars(report)["precision_brief"] = [verdict.headline, *verdict.brief]


def _parity_errors(error: BaseException) -> Iterator[ParityError]:
    """Yield each ParityError in an exception, in its causes and in its groups."""
    visited_ids: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        exception = left.pop()
        if exception is None or id(exception) in visited_ids:
            continue
        visited_ids.add(id(exception))
        if isinstance(exception, ParityError):
            yield exception
        context = None if exception.__suppress_context__ else exception.__context__
        left += [exception.__cause__, context, *getattr(exception, "exceptions", ())]


def _resources(config: pytest.Config) -> Resources:
    """Return the session's `Resources`: rank processes and recorded traces."""
    if RESOURCES not in config.stash:
        config.stash[RESOURCES] = Resources(config.stash.get(HOSTS, None))
        config.add_cleanup(config.stash[RESOURCES].close)
    return config.stash[RESOURCES]


def _arguments(marker: pytest.Mark) -> str:
    words = [*map(repr, marker.args), *(f"{k}={v!r}" for k, v in marker.kwargs.items())]
    return f"{marker.name}({', '.join(words)})"


READS = pytest.StashKey[set[str]]()


@contextmanager
def noted(item: pytest.Item) -> Iterator[None]:
    """Record, inside the context, which of the user's axes a test reads from its cell."""
    with axes_read() as item.stash[READS]:
        yield


def unread(item: pytest.Item, cell: Cell) -> list[str]:
    """List the axes that the user added to a test's cell and that no code has read so far."""
    return [name for name, _ in cell.extra if name not in item.stash.get(READS, ())]
