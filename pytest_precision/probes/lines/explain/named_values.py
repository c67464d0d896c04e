"""Name the values that operations read: of which tensor, and what has made it at which step."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_precision.matrix.tensor_key import in_module
from pytest_precision.probes.lines.explain.calls import ReferenceLookup, SingleCall
from pytest_precision.probes.lines.explain.kind_words import element_text
from pytest_precision.probes.lines.operations import OperationLog, Value

MADE_OF = 4
"""Operations between a gradient and what is made of it, such as its clipped form."""


def whose(value: Value, reader: SingleCall, lookup: ReferenceLookup) -> str:
    """Return words for a value that an operation reads: its tensor's name, or what made it.

    Args:
        value: of either side.
        reader: the candidate's operation that reads it, or would read it as the reference does.
        lookup: values of the reference.
    """
    if value.digest in lookup.names_at_start:
        return f"{lookup.names_at_start[value.digest]} as it was before"
    makers = lookup.makers.get(value.digest, [])
    if makers:
        maker = makers[0]
        step = f" at step {maker.step}" if maker.step and maker.step != reader.step else ""
        gradient = "" if reader.operation.backward else gradient_of(maker, lookup)
        return f"what {maker.operation.name} made{gradient}{maker.at}{step}"
    shape = f"of shape {[*value.shape]}"
    if value.uniform:
        return f"a constant, {element_text(value)} in all of a tensor {shape}"
    if value not in lookup:
        return "a value that it alone has"
    return f"another value, a {value.dtype} tensor {shape}"


def gradient_of(call: SingleCall, lookup: ReferenceLookup) -> str:
    """Return ` as`, or ` of`, `the gradient of NAME` of what is one or made of one; else nothing.

    A gradient of a parameter has its shape, and is made in the backward of its module.
    """
    joined = "as"
    for _ in range(MADE_OF):
        if call.operation.backward:
            names = [*parameters_of(call.operation.module, call.results, lookup)]
            return f" {joined} the gradient of {names[0]}" if len(names) == 1 else ""
        alike = [v for v in call.read if call.results and v.shape == call.results[0].shape]
        earlier = [maker for v in alike for maker in lookup.makers.get(v.digest, ())[:1]]
        if len(earlier) != 1:
            return ""
        joined, call = "of", earlier[0]
    return ""


def parameters_of(module: str, values: Iterable[Value], lookup: ReferenceLookup) -> set[str]:
    """Return the names of a module's parameters that have the shape of one of some values."""
    shapes = {value.shape for value in values}
    return {
        holding.name
        for holding, held_shapes in lookup.shapes.items()
        if holding.kind == "param" and shapes & held_shapes
        if in_module(holding.name)[0] == module
    }


def name_by_memory(value: Value, log: OperationLog) -> str:
    """Return which tensor of a rank lies in the memory of a value; empty if none does."""
    places = {(other.storage, other.span): holding for holding, other in log.left.items()}
    holding = places.get((value.storage, value.span))
    return "" if holding is None else f", {holding},"
