"""Find what went wrong before a value that both sides have by chance, such as a small quotient.

A loss that is summed otherwise may pass through a number that the reference has at another line.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pytest_precision.probes.lines.explain.calls import (
    ReferenceLookup,
    SingleCall,
    is_common,
    is_place,
    last_maker,
)
from pytest_precision.probes.lines.explain.counterparts import unlike_constants
from pytest_precision.probes.lines.explain.following import Wrong
from pytest_precision.probes.lines.explain.source_lines import line_text


def before_rejoined(
    chosen: list[Wrong], wrong: Sequence[Wrong], lookup: ReferenceLookup
) -> list[Wrong]:
    """Return the wrong operations, after those that a value which the sides share hid.

    The reference runs the first one alike, at the same line, on another value.

    Args:
        chosen: the wrong operations that lead to what differs.
        wrong: all of them.
        lookup: values of the reference.
    """
    first = chosen[0]
    if first.unlike or not _runs_alike(first.call, lookup):
        return chosen
    for value in first.call.read:
        maker = last_maker(first.calls, first.call.number, partial(is_place, value))
        if maker is None or is_common(value):
            continue
        others = lookup.makers.get(value.digest, ())
        if any(_is_same_code(maker, other) for other in others):
            continue
        hidden = [o for o in wrong if o.call.line == maker.line and o.call.number < maker.number]
        if hidden:
            return [hidden[0], *chosen]
    return chosen


def _runs_alike(call: SingleCall, lookup: ReferenceLookup) -> bool:
    """Return whether the reference runs the operation in the same code with the same constants."""
    return any(
        other.base == call.base and not unlike_constants(call, other) and _is_same_code(call, other)
        for other in lookup.calls
    )


def _is_same_code(call: SingleCall, other: SingleCall) -> bool:
    """Return whether two operations are called at one line, or at lines of the same text.

    The reference may be another commit, whose files lie elsewhere.
    """
    if call.line is None or other.line is None or call.line == other.line:
        return call.line == other.line
    ours, theirs = (line_text(line.file, line.line).strip() for line in (call.line, other.line))
    return bool(ours) and ours == theirs
