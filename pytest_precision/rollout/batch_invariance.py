"""Ask of any function whether a row of its result depends on the batch in which it is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pytest_precision.errors import expect_one_of, expected_but_got, is_bad_input, named
from pytest_precision.parity.compare.bounds import Bitwise
from pytest_precision.parity.compare.tensors import Difference, compare
from pytest_precision.parity.verdict import Ruling
from pytest_precision.rollout.module_outputs import output_tensors

__tracebackhide__ = is_bad_input

BATCH_SIZES = (1, 2, 3, 5, 8, 13, 17, 32, 64)
"""Sizes of the batches into which the rows are split, as far as there are so many rows: kernels
choose their tiles by the size."""


def batch_invariant(
    function: Callable[..., Any], inputs: Any, over: str
) -> tuple[Ruling, dict[str, Any]]:
    """Compute all rows at once, and in smaller batches; return the ruling, and figures.

    Raises:
        TypeError, ValueError: see `Parity.invariant`.
    """
    expect_one_of("over", over, ("batch",))
    batch = _batch(inputs)
    rows = len(batch[0])
    with torch.no_grad():
        whole, again = (_results(function, batch, rows) for _ in range(2))
    figures = {"observations": sum(result.numel() for result in whole)}
    if not all(_same(ours, theirs) for ours, theirs in zip(whole, again, strict=True)):
        reason = "the function gives other bytes when it is called again with the same batch"
        return Ruling(outcome="fail", reason=reason, gate=batch_invariant.__name__), figures
    if rows < 2 or all(
        _same(row, result[:1]) for result in whole for row in torch.split(result, 1)
    ):
        reason = "all rows of the result are the same, so that no batch could change them"
        return Ruling(outcome="vacuous", reason=reason, gate=batch_invariant.__name__), figures
    differing = [*_differing(function, batch, whole)]
    if not differing:
        return Ruling(), figures
    _, words = differing[0]
    sizes = ", ".join(str(size) for size, _ in differing)
    details = (f"batches of these sizes give other bytes than one of {rows}: {sizes}",)
    return Ruling(
        outcome="fail", reason=words, gate=batch_invariant.__name__, details=details
    ), figures


def _batch(inputs: Any) -> tuple[Tensor, ...]:
    batch = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    for number, tensor in enumerate(batch):
        if not isinstance(tensor, Tensor):
            advice = "bind other arguments with functools.partial"
            got = named(f"inputs[{number}]", tensor)
            raise TypeError(expected_but_got("tensors with a row for each", got, advice))
    lengths = {len(tensor) if tensor.ndim else 0 for tensor in batch}
    if len(lengths) != 1 or 0 in lengths:
        expected = "tensors with the same number of rows in dimension 0"
        raise ValueError(expected_but_got(expected, f"{sorted(lengths)} rows"))
    return batch


def _results(function: Callable[..., Any], batch: Sequence[Tensor], rows: int) -> list[Tensor]:
    """Return the results that have a row for each row of the inputs.

    Raises:
        ValueError: there are none.
    """
    results = output_tensors(function(*batch))
    with_rows = [result.detach() for result in results if result.ndim and len(result) == rows]
    if not with_rows:
        expected = f"a result with {rows} rows, as the inputs have,"
        raise ValueError(expected_but_got(expected, [tuple(result.shape) for result in results]))
    return with_rows


def _differing(
    function: Callable[..., Any], batch: Sequence[Tensor], whole: Sequence[Tensor]
) -> Iterator[tuple[int, str]]:
    """Yield each size of a batch that changes a row, with the first such row in words."""
    rows = len(batch[0])
    for size in BATCH_SIZES:
        if size >= rows:
            return
        words = _changed(function, batch, whole, size)
        if words:
            yield size, words


def _changed(
    function: Callable[..., Any], batch: Sequence[Tensor], whole: Sequence[Tensor], size: int
) -> str:
    for start in range(0, len(batch[0]), size):
        piece = [tensor[start : start + size].clone() for tensor in batch]
        with torch.no_grad():
            results = _results(function, piece, len(piece[0]))
        for ours, all_rows in zip(results, whole, strict=True):
            difference = compare(ours, all_rows[start : start + size], Bitwise())
            if difference is not None:
                return _words(difference, start, size, len(batch[0]))
    return ""


def _words(difference: Difference, start: int, size: int, rows: int) -> str:
    statistics = difference.statistics
    if statistics is None or statistics.first is None:
        return f"a batch of {size} gives another {difference.reason} than one of {rows}"
    row, *element = statistics.first
    where = f", element {tuple(element)}" if element else ""
    ulp = "" if statistics.max_ulp is None else f"; at most {statistics.max_ulp} ulp"
    return (
        f"row {start + row}{where} is {statistics.candidate_first!r} in a batch of {size}, "
        f"{statistics.reference_first!r} in one of {rows}{ulp}"
    )


def _same(ours: Tensor, theirs: Tensor) -> bool:
    return ours.shape == theirs.shape and compare(ours, theirs, Bitwise()) is None
