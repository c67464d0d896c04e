"""What a function call requires of its ranks, such as environment variables. Jobs with equal needs
share a group.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_precision.matrix.declared import Declared
from pytest_precision.ranks.code.import_path import ImportPath
from pytest_precision.ranks.state.environment import Environment


@dataclass(frozen=True, slots=True)
class Needs:
    """What a function call needs of its ranks, such as environment variables or fresh processes.

    Attributes:
        environment: environment that they run with.
        code: the user's own code that the job runs. Its ranks never run other code of the user, and
            they import this code before the job starts.
        fresh: whether the ranks must run no other job, neither before nor after.
        may_leave: patterns of changes that do not count as leaks.
        warn_only: whether operators without a deterministic algorithm run, with a warning.
        pure: whether the job is promised to depend on its arguments and its cell alone.
        launched: whether its processes are those that torchrun starts for a script file: they run
            nothing else, have imported nothing of the user's, and are in no process group of ours.
        collected: modules that pytest imported to collect the test, which its ranks import, too.
    """

    environment: Environment = field(default_factory=Environment.now)
    code: tuple[ImportPath, ...] = ()
    fresh: bool = False
    may_leave: tuple[str, ...] = ()
    warn_only: bool = False
    pure: bool = False
    launched: bool = False
    collected: tuple[ImportPath, ...] = ()

    @property
    def outlasts_check(self) -> bool:
        """Whether a later check may use ranks on which such jobs have run.

        The user's modules there are as an earlier import left them, which nobody can see.
        """
        return self.pure or not self.code

    @classmethod
    def of(
        cls, call: ImportPath, declared: Declared, collected: tuple[ImportPath, ...] = ()
    ) -> Needs:
        """Return which environment variables, code and process isolation a function call needs.

        Calls of the user's functions share a group of ranks if the functions are in one module.
        """
        code = call.home if call.is_of_users_module else call
        return cls(
            Environment.now(declared.environment),
            (code,) if call.is_users_own else (),
            declared.fresh_ranks,
            declared.may_leave,
            pure=declared.pure,
            collected=collected if call.is_users_own else (),
        )


def code_of(
    layout: ImportPath, other_import_path: ImportPath | None, workload: ImportPath | None
) -> tuple[ImportPath, ...]:
    """Return import paths of a run's code, if it may not share rank processes with other code.

    Args:
        layout: layout that runs.
        other_import_path: layout that continues in the same processes after a `swap`.
        workload: workload of both layouts; None of a script.

    Returns:
        Nothing if all code is this package's: such runs share a group. Otherwise the layouts,
        including ready-made ones, so that the two sides of a check never share a process; and the
        workload if it is the user's.
    """
    layouts = (layout,) if other_import_path is None else (layout, other_import_path)
    users_workload = () if workload is None or not workload.is_users_own else (workload,)
    return (
        (*layouts, *users_workload)
        if users_workload or any(path.is_users_own for path in layouts)
        else ()
    )
