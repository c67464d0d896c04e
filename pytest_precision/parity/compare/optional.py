"""Decide which tensors are left uncompared because one run may lack them or change them.

A forward may read a weight without calling its module, as a fused head does. No hook sees such a
read, so that side does not show the weight in use. What it held right before the step is compared
instead, and that is said. A tied weight is held under another name.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from pytest_precision.engine.further import is_counted_anew
from pytest_precision.engine.kinds import KINDS, RESTORED_KINDS
from pytest_precision.matrix.sequence import LOADS
from pytest_precision.matrix.tensor_key import TensorKey, outer_kind, resident_kind
from pytest_precision.parity.compare.alike import AlikeTensors
from pytest_precision.parity.compare.logical_tensor import assemble
from pytest_precision.parity.compare.own_gradients import reduced_elsewhere
from pytest_precision.parity.compare.pairs import Pair
from pytest_precision.parity.compare.starts import Starts
from pytest_precision.parity.words import listed
from pytest_precision.trace.moment import STATELESS, Moment
from pytest_precision.trace.reader import Entry, Trace

OTHER_PARTS = "each rank holds a part of it, and not the same part on both sides"
QUANTIZED_ALONE = "each rank of one side alone quantizes its part of the weight"

OF_QUANTIZED = frozenset(
    name for name, kind in KINDS.items() if "used_quantized" in (name, kind.shown_by)
)
"""Kinds of bytes and numbers that a part of a weight has others of than the whole weight."""


class Uncompared(NamedTuple):
    """Why a pair is not compared; without a `reason`, the report does not name it."""

    reason: str = ""


UNREPORTED = Uncompared()


class OptionalPairs:
    """Decides which tensors to leave uncompared since one run may lack them or have other values.

    What differs from the start on, of kinds whose values may, is named; what has agreed must not
    begin to differ, and what is not shown on a side has agreed if it was equal before the first
    update. A side that has loaded a checkpoint has other objects since, but schedules go on.

    Args:
        candidate: one side.
        reference: the other.
    """

    def __init__(self, candidate: Trace, reference: Trace) -> None:
        sides = candidate, reference
        self._starts = Starts(*sides)
        self._agreed: set[tuple[str, str, int | None]] = set()
        loads = ([m.op for m in side.moments if m.operation in LOADS] for side in sides)
        self._first_loads = [min(ops, default=sys.maxsize) for ops in loads]
        self._loaded = False
        self._aside: dict[tuple[str, str, str, str], str] = {}
        self._has: set[tuple[str, str, str]] = set()
        self._alike: set[AlikeTensors] = set()
        self._split: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)

    def begin(self, moments: tuple[Moment, Moment]) -> None:
        """Set the step and phase of both runs to which the next tensors belong."""
        self._moments = moments
        ops = zip(moments, self._first_loads, strict=True)
        self._loaded |= any(moment.op >= first for moment, first in ops)

    def aside(self, pair: Pair) -> Uncompared | None:
        """Return why a pair is left out, or None to compare it."""
        optional = KINDS[pair.kind].optional if pair.kind in KINDS else ""
        key = pair.kind, pair.name, pair.rank
        if pair.unlike and pair.kind in OF_QUANTIZED:
            self._split[pair.kind, QUANTIZED_ALONE].setdefault(pair.name)
            return UNREPORTED
        if reason := reduced_elsewhere(pair, self._moments):
            self._split[pair.kind, reason].setdefault(pair.name)
            return UNREPORTED
        beside = KINDS[pair.kind].optional_beside if pair.kind in KINDS else ""
        if beside or optional in ("tensor", "value"):
            sides = {"candidate": pair.candidate, "reference": pair.reference}
            for side in (side for side, tensor in sides.items() if tensor):
                self._has |= {(side, pair.kind, pair.name), (side, pair.kind, _what(pair))}
        if pair.candidate is None or pair.reference is None:
            if optional not in ("tensor", "value") and not self._is_beside(pair, beside):
                return None
            if not self._loaded and self._starts.agree(pair):
                return UNREPORTED if self._starts.is_at_start(pair) else None
            other_choice = _is_switch(pair) and key not in self._agreed
            side = "candidate" if pair.candidate is None else "reference"
            unsaid = other_choice or (optional == "value" and self._loaded)
            return UNREPORTED if unsaid else Uncompared(f"the {side} has none")
        if pair.rank is not None and pair.candidate.is_another_part(pair.reference):
            self._split[pair.kind, OTHER_PARTS].setdefault(pair.name)
            return UNREPORTED
        if optional != "value" and not _is_switch(pair):
            return None
        if pair.is_alike:
            self._agreed.add(key)
            return None
        if self._loaded and pair.kind in RESTORED_KINDS:
            # A setting that never moves is shown after a load alone.
            may = is_counted_anew(pair.name) or self._starts.differ(pair)
            return UNREPORTED if may else None
        agreed = key in self._agreed or self._starts.agree(pair)
        may = not agreed or (optional == "value" and self._loaded)
        return Uncompared("it differs from the start") if may else None

    def note_alike(self, tensors: AlikeTensors) -> None:
        """Note tensors that are the same on both sides, as `aside` would of each."""
        kind = tensors.kind
        row = KINDS.get(kind)
        if tensors in self._alike or row is None:
            return
        self._alike.add(tensors)
        if row.optional_beside or row.optional in ("tensor", "value"):
            names = {name for name, _ in tensors.keys}
            names |= {_part_named(kind, name) for name in names}
            for side in ("candidate", "reference"):
                self._has |= {(side, kind, name) for name in names}
            self._agreed |= {(kind, *key) for key in tensors.keys}

    def _is_beside(self, pair: Pair, kind: str) -> bool:
        """Return whether the only side that has a tensor shows another kind under its name, too."""
        shown = pair.candidate or pair.reference
        assert shown is not None
        entries = shown.trace.entries(self._moments[pair.candidate is None], {kind})
        return any(entry.name == pair.name for entry in entries)

    def note(self, pair: Pair, left_out: Uncompared) -> None:
        """Record a tensor that is not compared, with the reason if that is to be reported."""
        lacks = "candidate" * (pair.candidate is None) or "reference" * (pair.reference is None)
        if left_out.reason:
            self._aside.setdefault((lacks, pair.kind, _what(pair), pair.name), left_out.reason)

    def left_out(self) -> dict[str, str]:
        """Return the tensors that were not compared, each with the reason."""
        reasons: dict[str, str] = {}
        some: dict[tuple[str, str], list[str]] = defaultdict(list)
        for (lacks, kind, tensors, name), why in self._aside.items():
            if (lacks, kind, tensors) not in self._has:
                reasons[f"{kind} {tensors}"] = why
                continue
            named = (lacks, kind, name) in self._has
            some[kind, f"{why} {'in some steps' if named else 'of that name'}"].append(name)
        for (kind, why), names in (*some.items(), *self._split.items()):
            reasons[f"{kind} {listed([*names], 1)}"] = why
        for kind, owner in self._starts.unmoved():
            reasons.setdefault(f"{kind} {owner}", "it has not moved on either side")
        return reasons


def _is_switch(pair: Pair) -> bool:
    """Return whether a tensor records an on/off or text option of an optimizer's parameter group.

    An optimizer may lack the choice, or reach the same by another one.
    """
    tensor = pair.candidate or pair.reference
    return (
        pair.kind == "hyper" and tensor is not None and tensor.pieces[0].dtype in ("bool", "uint8")
    )


def _what(pair: Pair) -> str:
    """Return the part of a tensor's name by which the report groups uncompared tensors."""
    return _part_named(pair.kind, pair.name)


def _part_named(kind: str, name: str) -> str:
    key = TensorKey.of(kind, name)
    return key.part if kind == "hyper" else key.owner  # of an average, all of a module


NAMED_AT_MOST = 3
"""Names that are listed; of more, the number is said."""

COMPARED = "the weight before the step was compared instead"
STEP_NOT_SHOWN = "the weight before the step is not among the steps that were looked at"


PiecesByName: TypeAlias = Mapping[str, list[Entry]]
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
        """Substitute the stored weight where one run of a pair did not record what forward read.

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
        weights = self._weights_before(side, moments, kind)
        shown_by_name = (
            weights
            if weights is None or pair.name in weights
            else self._weights_before(other, moments, kind)
        )
        if weights is None or shown_by_name is None:
            self._names[side, STEP_NOT_SHOWN][pair.name] = None
            return None
        names = [pair.name] if pair.name in weights else self._tied_names(pair, shown_by_name)
        pieces = next((weights[name] for name in names if name in weights), None)
        if pieces is None:
            return pair
        weight = assemble(self._traces[side], pieces)
        self._names[side, COMPARED][pair.name] = None
        if side == "candidate":
            return replace(pair, candidate=weight)
        return replace(pair, reference=weight)

    def _weights_before(
        self, side: str, moments: tuple[Moment, Moment], kind: str
    ) -> PiecesByName | None:
        """Return a run's stored weights just before a step, by name; None if no state was recorded.

        Args:
            side: `candidate` or `reference`.
            moments: of the candidate and of the reference, in the step.
            kind: of the weights.
        """
        trace = self._traces[side]
        earlier = trace.moments[: trace.moments.index(moments[side == "reference"])]
        before = next(
            (moment for moment in reversed(earlier) if moment.phase not in STATELESS), None
        )
        if before is None:
            return None
        return trace.held(before, {kind})[kind]

    def _tied_names(self, pair: Pair, shown_by_name: PiecesByName) -> list[str]:
        """Return the other names under which a run may store a weight that modules share (tie).

        Weights that start alike, such as norms at one and gates at zero, have the same bytes until
        they are updated. Each moment leaves those names whose bytes are the same now, too; a weight
        that is the same as none of them is compared with the first of them, and differs.

        Args:
            pair: the weight as the side that shows the read has it.
            shown_by_name: what that side held before the step.
        """
        weight = pair.candidate or pair.reference
        assert weight is not None
        if pair.name in shown_by_name:
            return []
        key, like = (resident_kind(pair.kind), pair.name), weight.pieces[0]
        tied_names = self._tied.get(key, [])
        same = [
            name
            for name in tied_names or shown_by_name
            if name in shown_by_name
            and (shown_by_name[name][0].dtype, shown_by_name[name][0].shape)
            == (like.dtype, like.shape)
            and assemble(weight.trace, shown_by_name[name]).same_bytes(weight)
        ]
        self._tied[key] = same or tied_names
        return self._tied[key]

    def left_out(self) -> dict[str, str]:
        """Return the weights whose use in forward was not recorded, each with the reason."""
        return {
            f"used_param of {listed([*names], NAMED_AT_MOST)}": (
                f"no call of its module was seen in the {side}; {instead}"
            )
            for (side, instead), names in self._names.items()
        }


def shows_reads(kind: str) -> bool:
    """Return whether a kind of tensor, such as `used_param`, is a weight as a forward read it."""
    return outer_kind(kind) == "used_param"
