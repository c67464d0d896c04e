"""Find what has drawn or fetched the data that an operation reads, where those are other ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_precision.probes.lines.explain.calls import (
    ReferenceLookup,
    SingleCall,
    last_writer,
)
from pytest_precision.probes.lines.explain.counterparts import fetches, read_again
from pytest_precision.probes.lines.explain.following import Wrong
from pytest_precision.probes.lines.operations import Value

MAKERS_BACK = 4
"""Operations between a draw and what reads a value that is made of it."""


def drawn_or_fetched(
    chosen: list[Wrong], wrong: Sequence[Wrong], lookup: ReferenceLookup
) -> list[Wrong]:
    """Return the wrong operations, after the draw or fetch that gave the first one other data.

    Numbers that put rows into an order pass through Python's memory, where no log follows them.

    Args:
        chosen: the wrong operations that lead to what differs.
        wrong: all of them.
        lookup: values of the reference.
    """
    first = chosen[0]
    if first.moved and _is_data(first.moved[-1], first):
        draws = (origin for origin in wrong if origin.draws)
        before = next((o for o in draws if o.call.number < first.call.number), None)
        fetched = replace(first, call=first.moved[-1], unlike=(), source=False, moved=())
        return [before or fetched, *chosen]
    again = read_again(first.call, lookup)
    draw = None if again is None else _draw_behind(again.value, first)
    if draw is None or not any(_is_like(draw, call) for call in lookup.calls):
        return chosen
    return [replace(first, call=draw, unlike=()), *chosen]


def _is_data(fetch: SingleCall, wrong: Wrong) -> bool:
    """Return whether what an operation takes rows from is data, and not computed in this run."""
    makers = [_maker(value, fetch, wrong) for value in fetch.read]
    return all(maker is None or fetches(maker) for maker in makers)


def _draw_behind(value: Value, wrong: Wrong) -> SingleCall | None:
    """Return the candidate's draw in the same step that a value is made of; None if it is none."""
    reached = [(value, wrong.call)]
    for _ in range(MAKERS_BACK):
        makers = [_maker(read_value, reader, wrong) for read_value, reader in reached]
        of_step = [maker for maker in makers if maker and maker.step == wrong.call.step]
        draw = next((maker for maker in of_step if maker.draws), None)
        if draw is not None:
            return draw
        reached = [(read_value, maker) for maker in of_step for read_value in maker.read]
    return None


def _maker(value: Value, reader: SingleCall, wrong: Wrong) -> SingleCall | None:
    return last_writer(wrong.calls, reader.number, value.storage)


def _is_like(call: SingleCall, other: SingleCall) -> bool:
    """Return whether two operations are the same one of the same step, by name and line."""
    return (call.base, call.line, call.step) == (other.base, other.line, other.step)
