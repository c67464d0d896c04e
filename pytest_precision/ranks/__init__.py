"""Processes: open a group of ranks, run a job on it, survive what happens to it.

A job goes out as plain data (an import path and pickled arguments), results come back in rank
order. Only the rank processes import torch, and the `inline` mode, whose rank is the calling one.

    ranks = RankPool(timeout=60)
    ranks.run(2, function, argument)    # [result of rank 0, result of rank 1], or one RankError
    ranks.close()

How it reads: `pool` keeps groups that look like `group.Group`, one for all jobs with the same
`needs`; `local` is the group of processes and `inline` the one without. A `job` goes out, `watch`
waits for the answers, `blame` says what they mean.

    code      the user's functions: their import path, how a rank imports them
    process   one rank's process: what starts it, what it is told and says, what ends it
    state     what a job starts from, what it must leave as it was, how a change is named
    launch    processes that torchrun or srun has started, here or on other machines
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_precision import _lazy

if TYPE_CHECKING:
    from pytest_precision.ranks.code.import_path import ImportPath as ImportPath
    from pytest_precision.ranks.pool import RankPool as RankPool

__all__ = ["ImportPath", "RankPool"]

__getattr__, __dir__ = _lazy.exports(
    __name__, {"code.import_path": ("ImportPath",), "pool": ("RankPool",)}
)
