"""Needs: what a job asks of its ranks. Jobs share a group if they ask for the same."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_precision.matrix.declarations import Declared
from pytest_precision.ranks.code.import_path import ImportPath
from pytest_precision.ranks.state.environment import Environment


@dataclass(frozen=True, slots=True)
class Needs:
    """What a job asks of its ranks.

    Attributes:
        environment: that they run with.
        code: of the user's own that the job runs, the only such code that its ranks ever run. They
            import it before the job starts.
        fresh: whether the ranks must have run no other job, and run none after it.
        may_leave: patterns of the leaks that are none.
    """

    environment: Environment = field(default_factory=Environment.now)
    code: tuple[ImportPath, ...] = ()
    fresh: bool = False
    may_leave: tuple[str, ...] = ()

    @classmethod
    def of(cls, call: ImportPath, declared: Declared) -> Needs:
        """Return those of a call that is no run: the functions of one module share a group."""
        code = call.home if call.is_of_users_module else call
        return cls(
            Environment.now(declared.environment),
            (code,) if call.is_users_own else (),
            declared.fresh_ranks,
            declared.may_leave,
        )


def code_of(
    layout: ImportPath, other: ImportPath | None, workload: ImportPath
) -> tuple[ImportPath, ...]:
    """Return what of a run is the user's own, and so what its ranks serve alone.

    Args:
        layout: that runs.
        other: layout that goes on in the same processes after a `swap`.
        workload: of both.

    Returns:
        Nothing where all is the package's: such runs share a group. Otherwise the layouts, also
        ready-made ones, so that the two sides of a check never meet; and the workload if it is the
        user's.
    """
    layouts = (layout,) if other is None else (layout, other)
    own = (workload,) if workload.is_users_own else ()
    return (*layouts, *own) if own or any(path.is_users_own for path in layouts) else ()
