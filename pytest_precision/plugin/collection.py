"""Collection: parametrize tests with the cells of their matrix, and select those to run.

    marker -> matrix -> one parametrize call -> select -> coverage -> shard -> the cells of this run

Errors are gathered while tests are generated and raised after collection: pytest would show an
earlier error as a broken module. An xdist worker sends errors and counts to the controller, which
collects nothing itself. Modules that only matrix tests need are imported at the first such test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pytest

from pytest_precision.errors import MatrixError, expected_but_got
from pytest_precision.matrix.axes import Matrix, build
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.precisions import PRECISIONS
from pytest_precision.matrix.selection import covering, in_shard, matches, unselectable
from pytest_precision.options import MARKER_OPTIONS, Settings, with_marker
from pytest_precision.options.planning_only import runs_nothing
from pytest_precision.plugin.cell_counts import Asked, CellCounts, announcements, refusals
from pytest_precision.plugin.marker import CELL, MARKER, marker_of, out_of_reach
from pytest_precision.report.report_attributes import test_of


class Plan(NamedTuple):
    """The cells in which one test runs, such as precision × world size, and the test's settings."""

    matrix: Matrix
    settings: Settings


CollectedCell = tuple[pytest.Item, str, "Cell"]
"""A collected cell: its item, the node id of its test without parameters, and the cell."""


class Collection:
    """The tests of a session that run in a matrix, with the cells that each is to run in.

    Attributes:
        settings: settings of the session.
        plans: node id of each matrix test, without parameters, to its plan.
        errors: messages on wrong markers and selections.
        counts: numbers of cells, complete after collection.
        collected: whether the cells are known, from this process or from a worker.
        distributed: whether xdist workers collected instead of this process.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.plans: dict[str, Plan] = {}
        self.errors: list[str] = []
        self.counts = CellCounts()
        self.collected = False
        self.distributed = False
        self._matrices: dict[str, Matrix] = {}

    @property
    def planned(self) -> int | None:
        """The number of matrix cells that will run; None before collection has ended."""
        return self.counts.cells if self.collected else None

    def generate(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize a test with the cells (combinations of axis values) of its marker."""
        nodeid = metafunc.definition.nodeid
        try:
            mark = marker_of(metafunc)
            if mark is not None:
                settings = with_marker(self.settings, mark.kwargs, nodeid)
                plan = self.plans[nodeid] = Plan(self._matrix(mark, nodeid), settings)
                cells: list[Any] = [*plan.matrix.cells]
                if settings.fuzz:  # its place among the cells; what it runs is drawn
                    cells.append(PlaceOfDrawn(**vars(cells[0])))
                ids = [*plan.matrix.ids, "drawn"][: len(cells)]
                metafunc.parametrize(CELL, cells, indirect=True, ids=ids)
        except pytest.UsageError as error:
            self.errors.append(str(error))

    def choose(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect matrix cells that options exclude; skip the rest without --precision-matrix.

        Args:
            config: configuration of the session.
            items: all collected items; changed in place.
        """
        self.collected = True  # `finish` is also called for an interrupted collection
        if not self.errors:
            self.errors += out_of_reach(items)
        if self.plans and not self.errors:
            self.errors += self._refusals()
        if not self.plans or self.errors:
            return
        entries = list(self._entries(items))
        chosen_items = self._chosen_items(entries)
        if len(chosen_items) < len(entries):
            dropped = {item for item, _, _ in entries}.difference(chosen_items)
            config.hook.pytest_deselected(items=[item for item in items if item in dropped])
            items[:] = [item for item in items if item not in dropped]
        if self.settings.preloads and chosen_items and not runs_nothing(config):
            self.errors += self._not_preloaded()
        if not self.settings.enabled:
            skip = pytest.mark.skip(reason="cells run with --precision-matrix only")
            for item in chosen_items:
                item.add_marker(skip)

    def finish(self, session: pytest.Session) -> None:
        """Count the matrix cells that are left; an xdist worker sends its counts to the controller.

        Raises:
            pytest.UsageError: there are errors; it has all of them. A worker does not raise.
        """
        entries = list(self._entries(session.items))
        tests = dict.fromkeys(test for _, test, _ in entries)
        requests = dict.fromkeys(
            Asked(test, cell.precision, settings.backend, settings.device)
            for _, test, cell in entries
            if (settings := self.plans[test].settings).enabled
            and PRECISIONS[cell.precision].quantized
        )
        self.errors += refusals(requests)
        not_made: Counter[str] = Counter()
        for plan in self.plans.values():
            not_made.update(plan.matrix.not_made)
        self.counts = CellCounts(
            collected=sum(len(plan.matrix.cells) for plan in self.plans.values()),
            cells=len({item.nodeid for item, _, _ in entries}),
            tests=len(tests),
            coverages=list(dict.fromkeys(self.plans[test].settings.coverage for test in tests)),
            not_made=dict(not_made),
            formats=announcements(requests),
        )
        # A module that was not collected, or not completely, may have all the cells.
        counts_known = bool(self.counts.collected) or not session.testsfailed
        self.collected = self.collected and counts_known and not self.errors
        worker_output = getattr(session.config, "workeroutput", None)
        if worker_output is not None:
            worker_output["precision"] = {
                "errors": [str(error) for error in self.errors],
                "counts": self.counts._asdict(),
                "collected": self.collected,
            }
            if self.errors:
                session.items.clear()
        elif self.errors:
            raise pytest.UsageError(*self.errors)

    def receive(self, worker_output: dict[str, Any]) -> None:
        """Copy the matrix cell counts that an xdist worker has sent, and raise its errors.

        Raises:
            pytest.UsageError: the worker sent errors; it has all of them.
        """
        output = worker_output.get("precision")
        if output is not None:
            self.distributed = True
            self.counts = CellCounts(**output["counts"])
            self.collected = output["collected"]
            if output["errors"]:
                raise pytest.UsageError(*output["errors"])

    def header(self, verbosity: int) -> list[str]:
        """Return a line on how many matrix cells will run; empty without cells or with -q."""
        if not self.counts.collected or verbosity < 0:
            return []
        return [self.counts.line(self.settings)]

    def summary(self, verbosity: int) -> list[str]:
        """Return lines for the terminal summary, such as that no cell was left to run."""
        lines = self.header(verbosity) if self.distributed else []
        if self.settings.enabled and self.collected and not self.counts.cells:
            nothing = (
                f"none of the {self.counts.collected} cells that were collected was left to run"
                if self.counts.collected
                else f"no test with @pytest.mark.{MARKER} was collected"
            )
            lines.append(f"precision: --precision-matrix was given, but {nothing}")
        return lines

    def settings_of(self, item: pytest.Item) -> Settings:
        """Return the settings of a test: the session's, overridden by its marker's options."""
        plan = self.plans.get(test_of(item.nodeid))
        return self.settings if plan is None else plan.settings

    def cell_to_run(self, item: pytest.Item) -> Cell | None:
        """Return the cell (axis values) that a matrix test will run in; None for other tests."""
        if not self.settings.enabled:
            return None
        return next((cell for _, _, cell in self._entries([item])), None)

    def written(self, item: pytest.Item) -> list[Cell]:
        """List the cells written in a test's marker that match `--precision-select`."""
        cells = self.plans[test_of(item.nodeid)].matrix.cells
        return [cell for cell in cells if matches(cell, self.settings.select)]

    def _matrix(self, mark: pytest.Mark, nodeid: str) -> Matrix:
        # Classes and modules share one mark, and suites often share one set of axes.
        key = repr((mark.args, mark.kwargs))
        if key not in self._matrices:
            try:
                self._matrices[key] = build(mark.args, mark.kwargs, MARKER_OPTIONS)
            except MatrixError as error:
                raise pytest.UsageError(f"{nodeid}: {error}") from None
        return self._matrices[key]

    def _refusals(self) -> list[str]:
        matrices = {id(plan.matrix): plan.matrix for plan in self.plans.values()}
        return unselectable(self.settings.select, (c for m in matrices.values() for c in m.cells))

    def _not_preloaded(self) -> Iterator[str]:
        # Only here, for sessions with cells: it knows of processes.
        from pytest_precision.ranks.process.preloaded import missing_modules

        for module in missing_modules(self.settings.preload):
            yield expected_but_got(
                "installed modules in precision_preload",
                repr(module),
                "install it, correct its name, or leave it out of the ini file or of "
                "-o precision_preload=MODULE",
            )

    def _entries(self, items: Iterable[pytest.Item]) -> Iterator[CollectedCell]:
        for item in items:
            if isinstance(item, pytest.Function) and CELL in _parameters(item):
                test = test_of(item.nodeid)
                if test in self.plans:
                    yield item, test, _parameters(item)[CELL]

    def _chosen_items(self, entries: list[CollectedCell]) -> list[pytest.Item]:
        tests: dict[str, list[CollectedCell]] = {}
        for item, test, cell in entries:
            if is_drawn(item) or matches(cell, self.settings.select):
                tests.setdefault(test, []).append((item, test, cell))
        needed_items: list[pytest.Item] = []
        for test, selected in tests.items():
            # A test with further parameters has several items per cell, which stay together.
            cells = {id(cell): cell for item, _, cell in selected if not is_drawn(item)}
            chosen_cells = covering(list(cells.values()), self.plans[test].settings.coverage)
            keep = set(map(id, chosen_cells))
            needed_items += [
                item
                for item, _, cell in selected
                if (bool(keep) if is_drawn(item) else id(cell) in keep)
            ]
        return [item for item in needed_items if in_shard(item.nodeid, self.settings.shard)]


def is_drawn(item: pytest.Item) -> bool:
    """Return whether a test item runs randomly drawn matrix cells, for --precision-fuzz."""
    return isinstance(_parameters(item).get(CELL), PlaceOfDrawn)


class PlaceOfDrawn(Cell):
    """The cell that an item of drawn cells has until hypothesis draws others."""


def cell_of_test(request: pytest.FixtureRequest) -> Cell:
    """Return the value of the fixture `precision_cell`, or fail a test that has no matrix."""
    if not hasattr(request, "param"):
        pytest.fail(
            expected_but_got(
                "a test with cells",
                f"{request.node.nodeid}, which has none",
                f"mark it with @pytest.mark.{MARKER}(axis=[value, ...])",
            ),
            pytrace=False,
        )
    cell: Cell = request.param
    return cell


def _parameters(item: pytest.Item) -> dict[str, Any]:
    callspec = getattr(item, "callspec", None)
    return {} if callspec is None else callspec.params
