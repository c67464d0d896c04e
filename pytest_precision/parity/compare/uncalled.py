"""Compare weights that a forward reads without calling their module, as a fused head does.

No hook sees such a read, so that side does not show the weight in use. What it held right before
the step is compared instead, and that is said. A tied weight is held under another name.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TypeAlias

from pytest_precision.matrix.tensor_key import outer_kind, resident_kind
from pytest_precision.parity.compare.pairs import Pair, assemble
from pytest_precision.parity.words import listed
from pytest_precision.trace.moment import STATELESS, Moment
from pytest_precision.trace.reader import Entry, Trace

NAMED_AT_MOST = 3
"""Names that are listed; of more, the number is said."""

COMPARED = "the weight before the step was compared instead"
STEP_NOT_SHOWN = "the weight before the step is not among the steps that were looked at"


Held: TypeAlias = dict[str | None, list[Entry]]
"""The pieces of each weight, by its name."""


class Uncalled:
    """Substitutes the stored weight where a run did not record the weight that a forward read.

    Args:
        candidate: one side.
        reference: the other.
    """

    def __init__(self, candidate: Trace, reference: Trace) -> None:
        self._traces = {"candidate": candidate, "reference": reference}
        self._names: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
        self._tied: dict[str, str | None] = {}

    def stand_in(self, pair: Pair, moments: tuple[Moment, Moment]) -> Pair | None:
        """Let a run's stored weight stand for one used in forward that the run did not record.

        Args:
            pair: any pair; one that both sides have comes back as it is, and so does one whose
                side held no weight of that name.
            moments: of the candidate and of the reference.

        Returns:
            None where the trace begins with this very step, so that nothing says what was held.
        """
        if not shows_reads(pair.kind) or None not in (pair.candidate, pair.reference):
            return pair
        side = "candidate" if pair.candidate is None else "reference"
        held = self._held(side, moments, resident_kind(pair.kind))
        if held is None:
            self._names[side, STEP_NOT_SHOWN][pair.name] = None
            return None
        pieces = held.get(pair.name) or held.get(self._tied_name(pair, moments))
        if not pieces:
            return pair
        weight = assemble(self._traces[side], pieces)
        self._names[side, COMPARED][pair.name] = None
        if side == "candidate":
            return replace(pair, candidate=weight)
        return replace(pair, reference=weight)

    def _held(self, side: str, moments: tuple[Moment, Moment], kind: str) -> Held | None:
        """Return the weights that a side held right before a step; None if its trace begins there.

        Args:
            side: `candidate` or `reference`.
            moments: of the candidate and of the reference, in the step.
            kind: of the weights.
        """
        trace = self._traces[side]
        earlier = trace.moments[: trace.moments.index(moments[side == "reference"])]
        before = next((one for one in reversed(earlier) if one.phase not in STATELESS), None)
        if before is None:
            return None
        found: Held = defaultdict(list)
        for entry in trace.entries(before):
            if entry.kind == kind:
                found[entry.name].append(entry)
        return found

    def _tied_name(self, pair: Pair, moments: tuple[Moment, Moment]) -> str | None:
        """Return the name under which a weight read by a tied name is stored; None if none is."""
        if pair.name not in self._tied:
            side, seen = "candidate", pair.candidate
            if seen is None:
                side, seen = "reference", pair.reference
            held = self._held(side, moments, resident_kind(pair.kind)) or {}
            assert seen is not None
            same = (
                name
                for name, pieces in held.items()
                if pair.name not in held and assemble(seen.trace, pieces).same_bytes(seen)
            )
            self._tied[pair.name] = next(same, None)
        return self._tied[pair.name]

    def left_out(self) -> dict[str, str]:
        """Return the weights whose use in forward was not recorded, and what stood in for it."""
        return {
            f"used_param of {listed([*names], NAMED_AT_MOST)}": (
                f"no call of its module was seen in the {side}; {instead}"
            )
            for (side, instead), names in self._names.items()
        }


def shows_reads(kind: str) -> bool:
    """Return whether a kind of tensor, such as `used_param`, is a weight as a forward read it."""
    return outer_kind(kind) == "used_param"
