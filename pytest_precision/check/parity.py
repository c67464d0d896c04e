"""The fixture `parity`, with which a test compares training runs: check, repeat and compare.

What compares is imported where it is called: a session that compares nothing needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pytest_precision.check import preconditions
from pytest_precision.check.scored_test import ScoredTest
from pytest_precision.check.side import Side
from pytest_precision.check.terms import Terms
from pytest_precision.errors import (
    expect_count,
    expect_type,
    expected_but_got,
    is_bad_input,
    named,
)
from pytest_precision.matrix.cell import Cell, axes_of
from pytest_precision.matrix.contract import Contract
from pytest_precision.parity.compare.bounds import Unchecked
from pytest_precision.parity.compare.criterion import Criterion
from pytest_precision.parity.verdict import Verdict

__tracebackhide__ = is_bad_input


class Parity(ScoredTest):
    """The fixture `parity`: runs the candidate and the reference of a test and compares them."""

    def __repr__(self) -> str:
        return f"<parity of {self.nodeid}>"

    def check(
        self,
        candidate: Callable[..., Any],
        reference: Callable[..., Any] | str,
        *,
        workload: Callable[..., Any] | None = None,
        criterion: Criterion | Mapping[str, Criterion] | None = None,
        reference_cell: Cell | None = None,
        max_lost_updates: float | None = None,
        contract: Contract | None = None,
        oracle: Unchecked | Mapping[str, Unchecked] | None = None,
    ) -> Verdict:
        """Train candidate and reference through the same steps and compare all their tensors.

        Args:
            candidate: the layout under test: a module-level callable `(workload, cell) -> Engine`,
                or `functools.partial` of one; or a `script`.
            reference: the layout that it must agree with; or the name of a baseline, such as
                `golden/llama`, where there is no second layout.
            workload: makes the workload of both: a module-level class or function, or
                `functools.partial` of one; scripts do without.
            criterion: how equal two tensors must be: one for all, or a mapping from kinds; bitwise
                unless given.
            reference_cell: where the reference runs, if not in the test's cell:
                `cell.replace(world_size=1)`.
            max_lost_updates: largest share, from 0 to 1, of any one tensor's updates over the whole
                run that the candidate may lose. An update is lost if exact arithmetic would move
                the effective weight, but rounding leaves every bit of it; each is weighted by its
                size. Without this limit, lost updates are only reported.
            contract: what the candidate must have stored and done in addition to what its cell
                says: the dtype of parameters, fused accumulation, quantized parameters.
            oracle: `unchecked(reason=...)` judges no side by itself; unless given, a side fails
                whose update is not that of the workload's `optimizer_rule`, whose losses or
                gradients are not those of its model and loss, or that contradicts itself. A
                mapping from kinds, or from `kind:pattern of names`, leaves these alone.

        Returns:
            The verdict, if it is `pass`, or a `drift` that is only reported.

        Raises:
            ParityError: with any other verdict.
            TypeError: for a callable that cannot be sent to the ranks, for a script that does not
                take `(cell, record)`, for a layout without a workload, for a limit that is not a
                number, and for a `reference_cell`, `contract` or `oracle` of another type.
            ValueError: for a limit that is not from 0 to 1, for a kind of `oracle` that nothing
                judges, and for an empty name of a baseline.
        """
        __tracebackhide__ = True
        if reference_cell is not None:
            expect_type(
                "reference_cell", reference_cell, Cell, "a Cell", "write cell.replace(world_size=1)"
            )
        terms = self._terms(Terms.of(criterion, max_lost_updates, contract, oracle))
        if isinstance(reference, str):
            _expect_name("reference", reference, "a layout, or the name of a baseline")
            if reference_cell is not None:
                expected = "no reference_cell beside a reference that is a baseline"
                got = named("reference_cell", reference_cell)
                raise ValueError(expected_but_got(expected, got, "leave it out"))
            sides: tuple[Side, ...] = (self._alone(candidate, workload, self.cell, terms),)
            golden = other = reference
        else:
            cells = (self.cell, self.cell if reference_cell is None else reference_cell)
            sides = self._pair(candidate, reference, workload, cells, terms)
            golden, other = "", str(sides[1].layout)
        refused = preconditions.before(sides, self._seen)
        # It imports torch, which what is skipped or refused by then does not need.
        from pytest_precision.check.ruled_check import ruled_check

        further = self._further(terms, golden)
        ruled = self._ruled(
            refused, partial(ruled_check, sides, terms, further, self.make_recordings)
        )
        return self._verdict(sides[0], other, str(terms.criteria), ruled)

    def repeat(
        self,
        layout: Callable[..., Any],
        *,
        workload: Callable[..., Any] | None = None,
        runs: int = 3,
        threads: int | None = None,
        contract: Contract | None = None,
        oracle: Unchecked | Mapping[str, Unchecked] | None = None,
    ) -> Verdict:
        """Run a layout several times; raise unless each rank records the same bytes in all runs.

        The second run is on the ranks of the first one, the third on new ranks with another seed of
        Python's hashes, and so on in turn. On several GPUs there is one more, in which each rank
        has another device. The first run is also judged by itself, as each side of `check` is.

        Args:
            layout: a layout or a `script`, see `check`.
            workload: see `check`.
            runs: how many runs there are, from 2.
            threads: number of threads of one more run; unless given, each has one thread.
            contract: see `check`.
            oracle: see `check`.

        Returns:
            The verdict, if it is `pass`.

        Raises:
            ParityError: with any other verdict.
            TypeError: see `check`; and for numbers that are no `int`.
            ValueError: for fewer than 2 runs, and for no thread.
        """
        __tracebackhide__ = True
        from pytest_precision.check.repeat import devices_of, further_runs, repeated

        expect_count("runs", runs, 2)
        if threads is not None:
            expect_count("threads", threads, 1)
        terms = self._terms(Terms.of(None, None, contract, oracle))
        side = self._alone(layout, workload, self.cell, terms)
        devices = devices_of(side, self.settings.ranks_per_device)
        further = [*further_runs(side, runs, threads, self.ranks.mode, devices)]
        refused = preconditions.before((side,), self._seen)
        words = f"the same bytes in {len(further) + 1} runs"
        rule = partial(repeated, further, side, terms, self.make_recordings)
        return self._verdict(side, str(side.layout), words, self._ruled(refused, rule))

    def compare(
        self,
        candidate: str | Path,
        reference: str | Path,
        *,
        criterion: Criterion | Mapping[str, Criterion] | None = None,
    ) -> Verdict:
        """Compare two folders that `python -m pytest_precision record` wrote, on any machine.

        Args:
            candidate: the folder of the recording under test.
            reference: the folder of the one that it must agree with.
            criterion: see `check`; other criteria than `bitwise()` need the values of all steps.

        Returns:
            The verdict, if it is `pass`.

        Raises:
            ParityError: with any other verdict.
            RecordingError: a folder holds no whole recording, or the two cannot be compared.
            TypeError: a folder is neither text nor a path.
            ValueError: the name of a folder is empty.
        """
        __tracebackhide__ = True
        from pytest_precision.check.compare import compare_recordings
        from pytest_precision.trace.remote_folder import folder_named

        for side, folder in (("candidate", candidate), ("reference", reference)):
            advice = "give the folder that --out of record named"
            expect_type(side, folder, (str, Path), "the folder of a recording", advice)
            _expect_name(side, str(folder), "the folder of a recording")
        terms = Terms.of(criterion)._replace(root=self.root)
        axes = axes_of(self.cell)
        sides = folder_named(candidate), folder_named(reference)
        return self._stored_verdict(compare_recordings(*sides, terms, self.nodeid, axes))


def _expect_name(argument: str, name: str, expected: str) -> None:
    """Raise unless a text that names something is not empty.

    Raises:
        ValueError: it is, as that of a variable which was never set.
    """
    if not name.strip():
        advice = "a variable in its place may not be set"
        raise ValueError(expected_but_got(expected, named(argument, name), advice))
