"""What the fixtures `parity` and `ranks` give to a test, and what a test leaves for its reports."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_precision.check.parity import Parity
from pytest_precision.errors import RanksSkipped, WorldSizeError
from pytest_precision.matrix.declarations import Declared
from pytest_precision.plugin.launched import HOSTS
from pytest_precision.plugin.session import Resources
from pytest_precision.ranks.code.import_path import ImportPath
from pytest_precision.ranks.needs import Needs
from pytest_precision.ranks.pool import RankPool
from pytest_precision.report import attributes

if TYPE_CHECKING:
    from pytest_precision.matrix.cell import Cell
    from pytest_precision.options import Settings

PARITY = pytest.StashKey[Parity]()
RESOURCES = pytest.StashKey[Resources]()


class Ranks:
    """The fixture `ranks`, bound to one test.

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
        """A folder of this test that all its ranks see, in the test's `tmp_path`; pass it on:
        `ranks.run(function, ranks.shared_path)`.
        """
        path: Path = self._request.getfixturevalue("tmp_path") / "ranks"
        path.mkdir(exist_ok=True)
        return path

    def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a module-level function once on every rank, with one process group around them.

        The test is skipped if all ranks skip, or if there cannot be so many.

        Args:
            function: finds its rank through `torch.distributed`; what it declares by
                `layouts.with_environment` is set before its ranks start.
            args: of every call; they travel to the ranks, so they must pickle.
            kwargs: likewise.

        Returns:
            The results in rank order.

        Raises:
            RankError: a rank raised, died or hung, or skipped while others did not.
            TypeError: the function or an argument cannot travel.
        """
        __tracebackhide__ = True
        # A partial, so that a keyword may have any name.
        bound = functools.partial(function, *args, **kwargs) if callable(function) else function
        path = ImportPath.of(bound, "function")
        declared = Declared.of(function).allowing(self._settings.may_leave)
        try:
            return self._ranks.run(
                self.world_size,
                path,
                timeout=self._settings.timeout,
                needs=Needs.of(path, declared),
            )
        except (RanksSkipped, WorldSizeError) as error:
            pytest.skip(str(error))


def parity(item: pytest.Item, cell: Cell, settings: Settings) -> Parity:
    """The fixture of that name; its verdicts are found by the reports of `item`."""
    shared = _resources(item.config)
    found = Parity(item.nodeid, cell, settings, shared.ranks(settings), shared.traces)
    item.stash[PARITY] = found
    return found


def ranks(request: pytest.FixtureRequest, settings: Settings) -> Ranks:
    """The fixture of that name, on as many ranks as the marker `world_size` says."""
    item = request.node
    marker = item.get_closest_marker("world_size")
    given = "no marker" if marker is None else _arguments(marker)
    match marker:
        case pytest.Mark(args=(int(size),), kwargs={**none}) if size > 0 and not none:
            shared = _resources(item.config).ranks(settings)
            return Ranks(shared, size, settings, request)
    pytest.fail(
        f"{item.nodeid}: expected a marker with one int from 1 but got {given}; "
        "write @pytest.mark.world_size(2)",
        pytrace=False,
    )


def require_check(item: pytest.Item) -> None:
    """Fail a test that asked for `parity` and passed without a check."""
    if PARITY in item.stash and not item.stash[PARITY].verdicts:
        pytest.fail(
            "vacuous: the test asked for `parity` and made no check; "
            "call parity.check(...), or ask for `cell` alone",
            pytrace=False,
        )


def attach(report: pytest.TestReport, item: pytest.Item, cell: Cell, total: int) -> None:
    """Put the cell of a matrix test and its verdicts so far on a report of any phase.

    Args:
        report: of `item`.
        item: the test.
        cell: that it runs in.
        total: number of cells in this session.
    """
    assert isinstance(item, pytest.Function)
    found = item.stash.get(PARITY, None)
    attributes.attach(
        report,
        item,
        axes=cell.axes,
        verdicts=[verdict.as_dict() for verdict in found.verdicts] if found else [],
        number=item.callspec.indices["cell"],
        total=total,
    )


def _resources(config: pytest.Config) -> Resources:
    """The session's, closed with it."""
    if RESOURCES not in config.stash:
        config.stash[RESOURCES] = Resources(config.stash.get(HOSTS, None))
        config.add_cleanup(config.stash[RESOURCES].close)
    return config.stash[RESOURCES]


def _arguments(marker: pytest.Mark) -> str:
    words = [*map(repr, marker.args), *(f"{k}={v!r}" for k, v in marker.kwargs.items())]
    return f"{marker.name}({', '.join(words)})"
