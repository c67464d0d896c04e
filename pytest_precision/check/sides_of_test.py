"""Turn the callables that a test passes into plain data that ranks can record."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_precision.check.side import Side
from pytest_precision.check.terms import Terms
from pytest_precision.check.transformer_engine import skip_without
from pytest_precision.errors import expected_but_got, is_bad_input, named
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.declared import Declared
from pytest_precision.options import Settings
from pytest_precision.ranks.code.import_path import ImportPath
from pytest_precision.ranks.state.environment import Environment
from pytest_precision.recorders.scripts.script import expect_signature, is_script, resumes, way_in

__tracebackhide__ = is_bad_input


@dataclass(frozen=True)
class SidesOfTest:
    """Makes the candidate and the reference of a test from the two functions that it compares.

    Attributes:
        settings: of the test.
        device: where its ranks run.
    """

    settings: Settings
    device: str

    def pair(
        self,
        candidate: Callable[..., Any],
        reference: Callable[..., Any],
        workload: Callable[..., Any] | None,
        cells: tuple[Cell, Cell],
        terms: Terms,
    ) -> tuple[Side, Side]:
        """Make the pair of candidate and reference of a check from the test's callables.

        Args:
            candidate: the layout or the script under test.
            reference: the one that it must agree with.
            workload: of both; scripts do without.
            cells: where each of them runs.
            terms: of the test.

        Raises:
            TypeError: for a callable that cannot be sent to the ranks, for a script that does not
                take `(cell, record)`, and for a layout without a workload.
        """
        functions = candidate, reference
        named_sides = ImportPath.of(candidate, "candidate"), ImportPath.of(reference, "reference")
        self._expect_workload(functions, workload)
        made_by = None if workload is None else ImportPath.of(workload, "workload")
        caller = Environment.now()
        both = self._cells(cells)
        declared = [
            self._declared(cell, *order, workload)
            for cell, order in zip(both, (functions, functions[::-1]), strict=True)
        ]
        judged = terms.exempt.judges_gradients
        ours, theirs = (
            replace(
                Side.of(
                    *(path, other, made_by, cell, own, caller),
                    way_in=way_in(function),
                    resumes=resumes(function),
                ),
                gradients=judged,
            )
            for path, other, cell, own, function in zip(
                named_sides, named_sides[::-1], both, declared, functions, strict=True
            )
        )
        return ours, theirs

    def alone(
        self,
        layout: Callable[..., Any],
        workload: Callable[..., Any] | None,
        cell: Cell,
        terms: Terms,
    ) -> Side:
        """Make the candidate of a check that has no reference.

        Raises:
            TypeError: see `pair`.
        """
        return self.pair(layout, layout, workload, (cell, cell), terms)[0]

    def _cells(self, cells: Sequence[Cell]) -> list[Cell]:
        return [
            replace(
                cell,
                device=self.device,
                backend=self.settings.backend,
                shared_by=math.lcm(*(cell.fewest_microbatches for cell in cells)),
            )
            for cell in cells
        ]

    @staticmethod
    def _expect_workload(
        functions: Sequence[Callable[..., Any]], workload: Callable[..., Any] | None
    ) -> None:
        scripts = [one for one in functions if is_script(one)]
        for function in scripts:
            expect_signature(function)
        if workload is None and len(scripts) < len(functions):
            raise TypeError(
                expected_but_got(
                    "a workload for a layout",
                    named("workload", workload),
                    "give workload=, or declare both functions of (cell, record) with @script",
                )
            )

    def _declared(
        self,
        cell: Cell,
        layout: Callable[..., Any],
        other: Callable[..., Any],
        workload: Callable[..., Any] | None,
    ) -> Declared:
        """Return what the callables that run in a cell declare, such as environment variables."""
        running = (layout, other, workload) if cell.swaps else (layout, workload)
        declared = Declared.of(*running)
        if declared.transformer_engine:
            skip_without(self.settings, self.device)
        warn_only = self.settings.deterministic == "warn"
        return replace(declared.allowing(self.settings.may_leave), warn_only=warn_only)
