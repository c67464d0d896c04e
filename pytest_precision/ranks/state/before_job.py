"""Save a process's state before a job, to find what the job changes."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from pytest_precision.ranks.code.module_files import imported_files
from pytest_precision.ranks.job import Job
from pytest_precision.ranks.state import fingerprint, leaks, starting_point
from pytest_precision.ranks.state.code import Code
from pytest_precision.ranks.state.leaks import Leak


class Outcome(NamedTuple):
    """A function's result, and the process-wide state that it changed and did not restore.

    Attributes:
        result: result of the call.
        leaks: state that it did not restore, except what it may leave changed.
        imported: whether it imported modules of the user's while it ran: their state at its
            beginning is unknown, so that the process must serve no other call.
    """

    result: Any
    leaks: tuple[Leak, ...]
    imported: bool


class BeforeJob:
    """The state of this process before its first function call, to find what each call changes."""

    def __init__(self) -> None:
        self.code = Code()
        self._outdated = False
        self._of_torch = starting_point.torch_settings()

    def run(self, job: Job, threads: int = 1) -> Outcome:
        """Reset this process, call a function, and return its result and what it left changed.

        What pytest imported to collect the test comes first, and what it changes is where the job
        begins. The job's own modules are imported with the settings that torch had when the process
        began, as in pytest. What they change counts as leaks, but for the state that `reset` sets.
        """
        if self._outdated:
            self.code.renew()
        job.enter()
        self._of_torch.restore()
        starting_point.seed()  # what the imports draw is the same on all ranks
        if job.import_collected():
            self.code.renew()
        starting_point.reset(threads, warn_only=job.warn_only)
        before = fingerprint.read_state()
        self._of_torch.restore()
        function = job.resolve()
        self.code.take_in()
        imported_files().take_in()
        starting_point.reset(threads, warn_only=job.warn_only)
        result = function()
        imported = self.code.has_new()
        changes = (*leaks.between(before, fingerprint.read_state()), *self.code.changes())
        left = tuple(leak for leak in changes if not leak.is_one_of(job.may_leave))
        self._outdated = len(left) < len(changes)
        return Outcome(result, left, imported)


@cache
def before_jobs_of_process() -> BeforeJob:
    """Return the state of this process before its first function call; a fork has its parent's."""
    return BeforeJob()


@cache
def before_jobs_of_caller() -> BeforeJob:
    """Return the saved state to which function calls in the calling process are compared.

    Each such job saves it anew before it starts.

    A rank may itself run jobs inline, whose beginning is not that of the rank's own job.
    """
    return BeforeJob()
