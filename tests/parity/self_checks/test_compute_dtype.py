"""A bf16 or fp16 cell proves that something computed in that dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from pytest_precision import Cell, whole
from pytest_precision.parity.self_checks.vacuity import computed_elsewhere
from pytest_precision.trace.moment import Moment
from pytest_precision.trace.reader import Trace

Write = Callable[..., Trace]


def judged(write_trace: Write, cell: Cell, *products: str, used: torch.dtype) -> str | None:
    """The words on a run with these products, whose only weight was used in `used`."""
    weight = whole("used_param", "w", torch.ones(2, dtype=used))
    trace: Any = write_trace([(Moment(0, "train", 1, "forward_backward"), [weight])])
    trace.header = replace(trace.header, products=products)
    return computed_elsewhere(trace, cell)


@pytest.mark.parametrize("precision", ["fp32", "mxfp8"])
def test_other_precisions_say_nothing_of_a_dtype(write_trace: Write, precision: str) -> None:
    """What quantizes is asked for quantized operands instead."""
    assert judged(write_trace, Cell(precision), "float32", used=torch.float32) is None


def test_one_product_is_enough(write_trace: Write) -> None:
    """A router or a head in fp32 is no fault; autocast uses fp32 weights."""
    products = ("bfloat16", "float32")
    assert judged(write_trace, Cell("bf16"), *products, used=torch.float32) is None


def test_weights_in_bf16_do_not_make_products_of_it(write_trace: Write) -> None:
    """They may be cast to fp32 before they multiply."""
    words = judged(write_trace, Cell("bf16"), "float32", used=torch.bfloat16)
    assert words is not None
    assert words.startswith("nothing was computed in bfloat16 (matrix products were in float32)")


def test_without_products_weights_tell(write_trace: Write) -> None:
    """A model may multiply element by element alone."""
    assert judged(write_trace, Cell("fp16"), used=torch.float16) is None
    words = judged(write_trace, Cell("fp16"), used=torch.float32)
    assert words == (
        "nothing was computed in float16 (no matrix product was seen, and weights were in "
        "float32), but the precision is fp16"
    )
