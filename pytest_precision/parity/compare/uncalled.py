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


Held: TypeAlias = dict[str, list[Entry]]
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
        self._tied: dict[tuple[str, str], list[str]] = {}

    def stand_in(self, pair: Pair, moments: tuple[Moment, Moment]) -> Pair | None:
        """Let a run's stored weight stand for one used in forward that the run did not record.

        Args:
            pair: any pair; one that both sides have comes back as it is, and so does one whose
                side held no weight of that name.
            moments: of the candidate and of the reference.

        Returns:
            None where a trace begins with this very step, so that nothing says what was held.
        """
        if not shows_reads(pair.kind) or None not in (pair.candidate, pair.reference):
            return pair
        side, other = "candidate", "reference"
        if pair.candidate is not None:
            side, other = other, side
        kind = resident_kind(pair.kind)
        held = self._held(side, moments, kind)
        shown = held if held is None or pair.name in held else self._held(other, moments, kind)
        if held is None or shown is None:
            self._names[side, STEP_NOT_SHOWN][pair.name] = None
            return None
        names = [pair.name] if pair.name in held else self._tied_names(pair, shown)
        pieces = next((held[name] for name in names if name in held), None)
        if pieces is None:
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

    def _tied_names(self, pair: Pair, shown: Held) -> list[str]:
        """Return the names under which a weight may be stored that one side reads by a tied name.

        Weights that start alike, such as norms at one and gates at zero, have the same bytes until
        they are updated. Each moment leaves those names whose bytes are the same now, too; a weight
        that is the same as none of them is compared with the first of them, and differs.

        Args:
            pair: the weight as the side that shows the read has it.
            shown: what that side held before the step.
        """
        seen = pair.candidate or pair.reference
        assert seen is not None
        if pair.name in shown:
            return []
        key, like = (resident_kind(pair.kind), pair.name), seen.pieces[0]
        known = self._tied.get(key, [])
        same = [
            name
            for name in known or shown
            if name in shown
            and (shown[name][0].dtype, shown[name][0].shape) == (like.dtype, like.shape)
            and assemble(seen.trace, shown[name]).same_bytes(seen)
        ]
        self._tied[key] = same or known
        return self._tied[key]

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
