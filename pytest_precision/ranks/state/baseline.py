"""Baseline: the state of a process before a job, against which changes by the job are found."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from pytest_precision.ranks.code.import_path import ImportPath
from pytest_precision.ranks.job import Job
from pytest_precision.ranks.state import fingerprint, leaks, starting_point
from pytest_precision.ranks.state.code import Code
from pytest_precision.ranks.state.leaks import Leak


class Outcome(NamedTuple):
    """The result of a job, and the state that it left changed.

    Attributes:
        result: result of the call.
        leaks: state that it did not restore, except what it may leave changed.
        late: the user's own modules that it imported while it ran.
    """

    result: Any
    leaks: tuple[Leak, ...]
    late: tuple[ImportPath, ...]


class Baseline:
    """The state of this process before its first job, to which each job is compared."""

    def __init__(self) -> None:
        self.code = Code()
        self._outdated = False

    def run(self, job: Job, threads: int = 1) -> Outcome:
        """Reset the process's state, import all that a job needs, and run it.

        Changes by the imports count as leaks, except in the state that `reset` sets.
        """
        if self._outdated:
            self.code.renew()
        job.enter()
        starting_point.reset(threads, warn_only=job.warn_only)
        before = fingerprint.read_state()
        function = job.resolve()
        self.code.take_in()
        starting_point.reset(threads, warn_only=job.warn_only)
        result = function()
        late = self.code.late()
        found = (*leaks.between(before, fingerprint.read_state()), *self.code.changes())
        left = tuple(leak for leak in found if not leak.is_one_of(job.may_leave))
        self._outdated = len(left) < len(found)
        return Outcome(result, left, late)


@cache
def baseline_of_process() -> Baseline:
    """Return the `Baseline` of this process; a fork inherits its parent's."""
    return Baseline()


@cache
def baseline_of_caller() -> Baseline:
    """Return the baseline of the jobs that run inline, each of which renews it first.

    A rank may itself run jobs inline, whose beginning is not that of the rank's own job.
    """
    return Baseline()
