"""A weight that was rounded between two updates, as logs have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ReadBack:
    """The worst element of a weight that was rounded to bf16 or fp16 between two updates.

    Attributes:
        step: train step of the second one.
        name: the logical tensor's name.
        index: of the element.
        expected: what the update before has left.
        got: what the second one starts from.
        grid: the dtype that it was rounded to.
    """

    step: int
    name: str
    index: Sequence[int]
    expected: float
    got: float
    grid: str
