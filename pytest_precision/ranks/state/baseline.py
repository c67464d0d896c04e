"""Baseline: what a process is before a job, by which a rank tells what the job has left behind."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from pytest_precision.ranks.code.import_path import ImportPath
from pytest_precision.ranks.job import Job
from pytest_precision.ranks.state import fingerprint, leaks, starting_point
from pytest_precision.ranks.state.code import Code
from pytest_precision.ranks.state.leaks import Leak


class Outcome(NamedTuple):
    """What came of a job.

    Attributes:
        result: of the call.
        leaks: what it left, but for what it may leave.
        late: modules of the user's own that it imported while it ran.
    """

    result: Any
    leaks: tuple[Leak, ...]
    late: tuple[ImportPath, ...]


class Baseline:
    """That of this process, from now on."""

    def __init__(self) -> None:
        self.code = Code()
        self._outdated = False

    def run(self, job: Job, threads: int = 1) -> Outcome:
        """Run a job from the pristine state, with all that it needs imported before.

        What the imports change counts, unless it is what every job starts from.
        """
        if self._outdated:
            self.code = Code()
        job.enter()
        starting_point.reset(threads)
        before = fingerprint.read()
        function = job.resolve()
        self.code.take_in()
        starting_point.reset(threads)
        result = function()
        late = self.code.late()
        found = (*leaks.between(before, fingerprint.read()), *self.code.changes())
        left = tuple(leak for leak in found if not leak.is_one_of(job.may_leave))
        self._outdated = len(left) < len(found)
        return Outcome(result, left, late)


@cache
def of_this_process() -> Baseline:
    """Return the one of all jobs of this process, or of the process that it was forked from."""
    return Baseline()
