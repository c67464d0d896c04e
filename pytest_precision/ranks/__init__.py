"""Start a group of N processes, call a function on all of them, and survive any failure.

A job is sent as plain data (an import path and pickled arguments); results come back in rank order.
Only the rank processes import torch, or the calling process if it is the rank (`inline` mode).

    ranks = RankPool(timeout=60)
    ranks.run(2, function, argument)    # [result of rank 0, result of rank 1], or one RankError
    ranks.close()

How the modules work together: `pool` keeps groups, each a `RankGroup`, one for all jobs with the
same `needs`. `local` is the group of processes, `inline` the one without processes. A
`job` is sent, `watch` waits for the answers, `blame` decides what they mean.

    code      the user's functions: their import path, how a rank imports them
    process   one rank's process: how it starts, which messages it exchanges, how it ends
    state     what a job starts from, what it must restore, how a change is named
    gpus      which GPUs the ranks of a group get, and who may use one now
    launch    processes that torchrun or srun has started, here or on other machines
"""

from typing import TYPE_CHECKING

from pytest_precision import _lazy

if TYPE_CHECKING:
    from pytest_precision.ranks.code.import_path import ImportPath
    from pytest_precision.ranks.pool import RankPool

__all__ = ["ImportPath", "RankPool"]

__getattr__, __dir__ = _lazy.exports(
    __name__, {"code.import_path": ("ImportPath",), "pool": ("RankPool",)}
)
