"""Words for how an operation that made a wrong value differs from what the reference does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from pytest_precision.probes.lines.explain.calls import SingleCall
from pytest_precision.probes.lines.operations import Constant, Value

MIXED = (
    "what this rank gives is right: other ranks, or another reduction, made the value wrong; a sum "
    "in another order, as of buckets of another size, is no error"
)

OTHER_ORDER = "the reference adds the same values in another order"

SAME_CALL = (
    "the reference made other bits of the same values and constants: kernels, threads, flags or "
    "memory layouts differ"
)

OTHER_BATCH = (
    "it makes other bits of the same rows in a batch of shape {0} than the reference in one of "
    "shape {1}"
)

OF_A_PART = (
    "it computes over a part, of shape {0}, the reference over the whole, of shape {1}: a norm or "
    "a sum of a part is not that of the whole"
)

A_REGION = "a compiled region, which is counted as one operation,"

OTHER_DRAWS = (
    "it draws from another random state than the reference: another seed, or another number of "
    "draws before"
)

AGAIN_IN_BACKWARD = "it draws again in the backward, where the reference draws nothing"

IN_REGION = (
    f"{A_REGION} makes it of values that the reference "
    'has, too; compile with backend="aot_eager" to see the operations inside'
)

IN_GRAPH = (
    "it counts as one operation, and may have made what {name} reads{at} and the reference has "
    "not; run the step without the graph to see the operations inside"
)


class ErrorKind(NamedTuple):
    """How an operation that made a wrong value differs from the reference's: a kind and a phrase.

    Attributes:
        kind: one of `culprit.CULPRIT_KINDS`.
        words: what the two sides did, after the place.
        reference: what the reference did, if it did something like it.
        constants: of both sides, those that differ, by name.
        blamed: the operation of the candidate to name in place of the one that was found.
    """

    kind: str
    words: str
    reference: SingleCall | None = None
    constants: Mapping[str, Mapping[str, str]] | None = None
    blamed: SingleCall | None = None


def element_text(value: Value) -> str:
    """Return the element of a tensor whose elements are all equal, as text."""
    element = torch.frombuffer(bytearray(value.element), dtype=getattr(torch, value.dtype))
    return str(element[0].item())


VERBS = {
    "mul": "multiplied by",
    "div": "divided by",
    "add": "added",
    "sub": "subtracted",
    "pow": "took the power of",
}


def constant_words(
    call: SingleCall, other: SingleCall, theirs: tuple[Constant, ...], ours: tuple[Constant, ...]
) -> str:
    """Return words on the constants with which the reference and the candidate call an operator."""
    place = "here"
    if other.line is not None and call.line is not None and other.line.called != call.line.called:
        place = f"in {other.line.called}" if other.line.called else other.at.strip()
    verb = VERBS.get(call.base, "gave")
    by = "by " if call.base in ("mul", "div") else ""
    their_words, our_words = (", ".join(each.text for each in side) for side in (theirs, ours))
    return f"the reference {verb} {their_words} {place}, the candidate {by}{our_words}"
