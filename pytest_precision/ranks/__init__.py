"""Processes: open a group of ranks, run a job on it, survive what happens to it.

A job goes out as plain data (an import path and pickled arguments), results come back in rank
order. Only the rank processes import torch, and the `inline` mode, whose rank is the calling one.

    ranks = Ranks(timeout=60)
    ranks.run(2, function, argument)    # [result of rank 0, result of rank 1], or one RankError
    ranks.close()

How it reads: `pool` keeps groups that look like `group.Group`; `local` is the group of processes
and `inline` the one without; `job` and `travel` are what goes out, `messages` what is said;
`worker` is the other end of the wire; `watch` waits for the answers, `judge` says what they mean.
"""

from __future__ import annotations

from pytest_precision.ranks.errors import RankError, WorldSizeError
from pytest_precision.ranks.pool import Ranks
from pytest_precision.ranks.travel import ImportPath

__all__ = ["ImportPath", "RankError", "Ranks", "WorldSizeError"]
