"""What a figure or a self check may ask of a check: its recorded sides, and their comparison."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from pytest_precision.parity.compare.divergences import Judgement
from pytest_precision.parity.exempt import Exempt
from pytest_precision.trace.recording import Recording

_T = TypeVar("_T")


class RecordedCase(Protocol):
    """The recorded sides of a check with their comparison; `check.case.Case` is one."""

    candidate: Recording
    reference: Recording

    @property
    def sides(self) -> tuple[Recording, Recording]:
        """Return the candidate and the reference."""

    @property
    def judged(self) -> tuple[Recording, ...]:
        """Return the runs that are also checked individually: both, or a lone candidate."""

    @property
    def whole(self) -> RecordedCase:
        """Return the check of all steps; this one may have the values of some of them."""

    @property
    def exempt(self) -> Exempt:
        """Return the tensors that the test leaves out of the checks of a run against itself."""

    @property
    def judgement(self) -> Judgement:
        """Return the results of comparing every pair of tensors."""

    def once(self, make: Callable[[RecordedCase], _T]) -> _T:
        """Return a function's result for this check; call the function only the first time."""
