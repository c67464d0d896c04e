"""A module of the user's own, with all that may be left behind in one."""

from __future__ import annotations

import torch

COUNT = 0
CALLS: list[int] = []
TABLE: dict[str, list[int]] = {"calls": []}
WRITTEN = torch.zeros(2)


class Framework:
    """Holds what a whole process has."""

    depth = 0

    def __init__(self) -> None:
        self.seen: list[int] = []


STATE = Framework()


def remembers(cache: dict[str, int] = {}) -> None:  # noqa: B006
    cache["calls"] = 1


def gelu(x: torch.Tensor) -> torch.Tensor:
    return x


def count() -> int:
    """What a layout does that counts how often it was called."""
    global COUNT
    COUNT += 1
    return COUNT
