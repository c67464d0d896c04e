"""Words for how an operation that made a wrong value differs from what the reference does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from pytest_precision._torch.dispatch import argument_names
from pytest_precision.probes.lines.explain.calls import SingleCall
from pytest_precision.probes.lines.operations import Constant, LoggedArgument, Value

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


def operand_words(argument: LoggedArgument) -> str:
    """Return words for the form of an argument: a tensor's dtype and shape, or a number."""
    if isinstance(argument, Value):
        return f"a {argument.dtype} tensor of shape {[*argument.shape]}"
    if isinstance(argument, Constant):
        return f"the number {argument.text}" if argument.text[:1].isdigit() else argument.text
    return f"{len(argument)} tensors"


VERBS = {
    "mul": "multiplied by",
    "div": "divided by",
    "add": "added",
    "sub": "subtracted",
    "pow": "took the power of",
}

REDUCTIONS = {"0": "none", "1": "mean", "2": "sum"}
"""What the numbers mean that torch's operators have for `reduction`."""


def constant_words(
    call: SingleCall, other: SingleCall, theirs: tuple[Constant, ...], ours: tuple[Constant, ...]
) -> str:
    """Return words on the constants with which the reference and the candidate call an operator."""
    place = "here"
    if other.line is not None and call.line is not None and other.line.called != call.line.called:
        place = f"in {other.line.called}" if other.line.called else other.at.strip()
    verb = VERBS.get(call.base)
    if verb is None:
        their_place = "" if place == "here" else f" {place}"
        pairs = zip(ours, theirs, strict=True)
        named = ", ".join(_both(call, other, *pair) for pair in pairs)
        return f"{named} in the reference{their_place}"
    by = "by " if call.base in ("mul", "div") else ""
    their_words, our_words = (", ".join(each.text for each in side) for side in (theirs, ours))
    return f"the reference {verb} {their_words} {place}, the candidate {by}{our_words}"


def _both(call: SingleCall, other: SingleCall, mine: Constant, theirs: Constant) -> str:
    """Return an argument's name and its values on both sides, as `reduction 1 (mean) here, …`."""
    name = _name(call, mine) or _name(other, theirs) or "a constant"
    ours, expected = (
        f"{text} ({REDUCTIONS[text]})" if name == "reduction" and text in REDUCTIONS else text
        for text in (mine.text, theirs.text)
    )
    return f"{name} is {ours} here, {expected}"


def _name(call: SingleCall, constant: Constant) -> str:
    """Return the name of a constant among the arguments of its operator; empty if unknown."""
    if constant.name:
        return constant.name
    places = [place for place, argument in enumerate(call.arguments) if argument is constant]
    names = argument_names(call.operation.name)
    return names[places[0]] if places and places[0] < len(names) else ""
