"""Fuzz: run each matrix test in randomly drawn cells, too; hypothesis shrinks a failure.

Kept ranks make a drawn cell cheap. Sequences that are refused before anything trains, and cells in
which the test skips, say nothing about a layout and are drawn anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest

from pytest_precision.errors import ParityError
from pytest_precision.matrix import drawn
from pytest_precision.matrix.cell import Cell
from pytest_precision.options import Settings
from pytest_precision.parity.verdict import Verdict, again
from pytest_precision.plugin import fixtures
from pytest_precision.plugin.collection import Collection, is_drawn
from pytest_precision.plugin.marker import CELL


class Fuzz:
    """The hook that runs tests in randomly drawn cells, for --precision-fuzz.

    Args:
        collection: the matrix tests of the session.

    Raises:
        pytest.UsageError: hypothesis is not installed.
    """

    def __init__(self, collection: Collection) -> None:
        if find_spec("hypothesis") is None:
            raise pytest.UsageError(
                "expected hypothesis with --precision-fuzz but it is not installed; "
                "pip install 'pytest-precision[fuzz]'"
            )
        self.collection = collection

    @classmethod
    def of(cls, config: pytest.Config) -> Fuzz:
        """Return the hook for a session."""
        from pytest_precision.plugin.hooks import COLLECTION

        return cls(config.stash[COLLECTION])

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        """Run a test in randomly drawn cells, if it asks for them; leave others to pytest."""
        __tracebackhide__ = True
        if not is_drawn(pyfuncitem):
            return None
        settings = self.collection.settings_of(pyfuncitem)
        run_drawn(pyfuncitem, self.collection.written(pyfuncitem), settings)
        return True


def run_drawn(item: pytest.Function, written_cells: Sequence[Cell], settings: Settings) -> None:
    """Run a test in as many random matrix cells as --precision-fuzz says; shrink a failure.

    Args:
        item: its fixtures are set up; `cell` and `parity` are replaced in each call.
        written_cells: the cells of the test that were selected.
        settings: settings of the test.

    Raises:
        ParityError: of the simplest cell that fails, with the marker that makes it.
    """
    __tracebackhide__ = True
    import hypothesis

    ran: list[Cell] = []

    @hypothesis.settings(
        max_examples=settings.fuzz,
        deadline=None,
        database=None,
        print_blob=False,
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(drawn.cells(written_cells))
    def check(cell: Cell) -> None:
        _call(item, cell, settings, hypothesis.reject)
        ran.append(cell)

    try:
        check()
    except hypothesis.errors.Unsatisfiable:
        pytest.skip("no cell that was drawn can run: the layout refuses them, or the test skips")
    except ParityError as error:
        simplest = item.stash[fixtures.PARITY]
        verdict = _to_paste(error.verdict, simplest.cell, settings.fuzz)
        simplest.verdicts[-1] = verdict
        raise ParityError(verdict) from None
    different = len(set(ran))
    item.add_report_section("call", "precision", f"{different} different cells were drawn")


def _to_paste(verdict: Verdict, cell: Cell, drawn_cells: int) -> Verdict:
    """Return a failed verdict that ends with a marker to paste, which runs the same cell."""
    command = again(verdict.nodeid, options=f"--precision-fuzz {drawn_cells}")
    paste = f"To have this cell, paste above the test: {drawn.marker(cell)}"
    return replace(verdict, command=command, closing=(paste, f"Draw again with: {command}"))


def _call(item: pytest.Function, cell: Cell, settings: Settings, reject: Callable[[], Any]) -> None:
    """Run a test in one drawn matrix cell; call `reject` if the test or the cell cannot run."""
    parity = fixtures.parity_of(item, cell, settings)
    place = item.funcargs[CELL]
    arguments = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
    # A fixture `cell` may be the project's own, which is left as it is.
    arguments |= {name: cell for name, value in arguments.items() if value is place}
    if "parity" in arguments:
        arguments["parity"] = parity
    try:
        item.obj(**arguments)
    except pytest.skip.Exception:
        reject()
    except ParityError as error:
        if error.verdict.timing is None:  # refused before anything was recorded
            reject()
        raise
