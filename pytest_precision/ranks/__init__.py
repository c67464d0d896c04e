"""Processes: open a group of ranks, run a job on it, survive what happens to it.

A job goes out as plain data (an import path and pickled arguments), results come back in rank
order. Only the rank processes import torch, and the `inline` mode, whose rank is the calling one.

    ranks = RankPool(timeout=60)
    ranks.run(2, function, argument)    # [result of rank 0, result of rank 1], or one RankError
    ranks.close()

How it reads: `pool` keeps groups that look like `group.Group`; `local` is the group of processes
and `inline` the one without; `job` and `travel` are what goes out, `loading` and
`rewriting` import it there, `messages` is what is said; `worker` is the other end of the wire;
`watch` waits for the answers, `judge` says what they mean.
What a rank is: `environment` has its variables, `devices` its GPU, `pristine` the state that a job
starts from, `fingerprint` and `leaks` what the job left; `server` and `process` start it.
In a launch by torchrun or srun, `hosts` is the controller's side and `serve` that of the processes
that hold its ranks; `roll` and `meeting` bring them together, `wire` connects them, and `remote` is
to a rank elsewhere what `process` is to one here.
"""

from __future__ import annotations

from pytest_precision.ranks.errors import RankError, RanksSkipped, WorldSizeError
from pytest_precision.ranks.leaks import PrecisionLeakWarning
from pytest_precision.ranks.pool import RankPool
from pytest_precision.ranks.travel import ImportPath

__all__ = [
    "ImportPath",
    "PrecisionLeakWarning",
    "RankError",
    "RankPool",
    "RanksSkipped",
    "WorldSizeError",
]
