"""Say that an engine's tensor has the rows of the trainer's in another order, or more or fewer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, permutations

import numpy as np
import torch
from torch import Tensor

from pytest_precision.parity.compare.tensors import same_bytes
from pytest_precision.parity.words import listed
from pytest_precision.rollout.expected_weights import ExpectedWeight
from pytest_precision.rollout.inference_weights import module_name
from pytest_precision.rollout.weight_causes import WEIGHT_NAME, bits_of, numbered

MOST_PARTS = 4
"""Weights in a fused tensor whose orders are tried: queries, keys, values and a gate."""

WRITTEN_OUT = 8
"""Rows whose order is written out, as of experts; of more, it is said which are out of place."""


def orders_of_parts(target: ExpectedWeight) -> Iterator[tuple[str, Tensor]]:
    """Yield what an engine would hold that fuses the parts of a tensor in another order.

    Args:
        target: what the engine should hold, as a tensor.
    """
    names, expected = target.making.groups[0], target.expected
    axis = 1 if target.making.stacked else 0
    lengths = [*target.lengths[: len(names)]]
    if not isinstance(expected, Tensor) or expected.ndim <= axis or target.ending:
        return
    if not 1 < len(names) <= MOST_PARTS or sum(lengths) != expected.shape[axis]:
        return
    starts = [0, *accumulate(lengths)]
    parts = [expected.narrow(axis, *piece) for piece in zip(starts, lengths, strict=False)]
    for order in [*permutations(range(len(names)))][1:]:
        shown = ", ".join(module_name(names[part]) for part in order)
        words = f"another order: {WEIGHT_NAME} holds {shown}, in this order"
        yield words, torch.cat([parts[part] for part in order], axis)


def order_words(actual: Tensor, target: ExpectedWeight) -> str:
    """Return in words in which order an engine's tensor holds what the trainer's does; else empty.

    Args:
        actual: the engine's tensor.
        target: what it should be, as a tensor.
    """
    expected = target.expected
    assert isinstance(expected, Tensor)
    if actual.dtype is not expected.dtype or actual.ndim != expected.ndim or not expected.ndim:
        return ""
    if actual.shape[1:] == expected.shape[1:] and len(actual) != len(expected):
        return _length_words(actual, expected)
    if actual.shape != expected.shape:
        return ""
    for words, hypothesis in orders_of_parts(target):
        if same_bytes(actual.contiguous(), hypothesis.contiguous()):
            return words
    for axis, noun in ((0, "row"), (expected.ndim - 1, "column")):
        words = _moved_words(actual.movedim(axis, 0), expected.movedim(axis, 0), noun)
        if words:
            return words
    return ""


def _length_words(actual: Tensor, expected: Tensor) -> str:
    shared, more = min(len(actual), len(expected)), len(actual) - len(expected)
    if not shared or not same_bytes(actual[:shared].contiguous(), expected[:shared].contiguous()):
        return ""
    count = f"{abs(more)} row{'s' * (abs(more) != 1)}"
    if more < 0:
        return f"cut: {WEIGHT_NAME} lacks the last {count}"
    return f"padded: {WEIGHT_NAME} has {count} more at its end, which no cast declares"


def _moved_words(actual: Tensor, expected: Tensor, noun: str) -> str:
    """Return which parts along dimension 0 are out of place, if each one is there."""
    ours, theirs = _rows(actual), _rows(expected)
    ranks = [np.argsort(rows, kind="stable") for rows in (ours, theirs)]
    if not np.array_equal(ours[ranks[0]], theirs[ranks[1]]):
        return ""
    if len(ours) <= WRITTEN_OUT:
        places = np.empty(len(ours), dtype=int)
        places[ranks[0]] = ranks[1]
        shown = listed([*map(str, places)], WRITTEN_OUT)
        return f"another order: {WEIGHT_NAME} holds its {noun}s in the order {shown}"
    moved = np.flatnonzero(ours != theirs)
    where = numbered(noun, int(moved[0]), int(moved[-1]) + 1)
    return f"another order: {where} of {WEIGHT_NAME} hold each other's values"


def _rows(tensor: Tensor) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """Return the bytes of each part along dimension 0 as one element."""
    content = bits_of(tensor.contiguous()).reshape(len(tensor), -1).numpy()
    return content.view(np.dtype((np.void, content.shape[1]))).ravel()
