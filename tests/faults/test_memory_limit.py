"""A rank that reaches the limit of its memory, in a tensor and in Python."""

from __future__ import annotations

import pytest
from slack import slack

MORE = 100_000_000


def beyond_the_limit(where):
    import resource

    import torch
    import torch.distributed as dist

    if dist.get_rank() == 1:
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MORE, used + MORE))
        if where == "tensor":
            torch.ones(MORE)
        else:
            hoard = []
            while True:
                hoard.append(bytes(10_000))
    dist.all_reduce(torch.ones(1))


FAULTS = [(beyond_the_limit, (where,)) for where in ("tensor", "python")]


@pytest.mark.parametrize(
    ("where", "exception", "words"),
    [
        ("tensor", "builtins.RuntimeError", "you tried to allocate 400000000 bytes"),
        ("python", "builtins.MemoryError", "MemoryError"),
    ],
)
def test_memory_that_is_refused_is_the_cause(suffer, where, exception, words):
    """What has none left can still say so."""
    suffered = suffer(beyond_the_limit, where)
    assert (suffered.error.rank, suffered.error.cause) == (1, "raised")
    assert suffered.error.exception == exception
    assert words in suffered.headline
    assert suffered.seconds < slack()
