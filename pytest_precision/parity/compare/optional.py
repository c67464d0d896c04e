"""Decide which tensors are not compared because one side may lack them or hold other values."""

from __future__ import annotations

import sys
from collections import defaultdict

from pytest_precision.engine.kinds import KINDS
from pytest_precision.matrix.sequence import LOADS
from pytest_precision.matrix.tensor_key import TensorKey
from pytest_precision.parity.compare.pairs import Pair
from pytest_precision.parity.words import listed
from pytest_precision.trace.moment import Moment
from pytest_precision.trace.reader import Trace

OTHER_PARTS = "each rank holds a part of it, and not the same part on both sides"
QUANTIZED_ALONE = "each rank of one side alone quantizes its part of the weight"

OF_QUANTIZED = frozenset(
    name for name, kind in KINDS.items() if "used_quantized" in (name, kind.shown_by)
)
"""Kinds of bytes and numbers that a part of a weight has others of than the whole weight."""


class OptionalPairs:
    """Decides which tensors are not compared since one run may rightly lack or change them.

    What differs from the start on, of kinds whose values may, is named; what has agreed must not
    begin to differ. Where one side alone has loaded a checkpoint, it has other objects since.
    """

    def __init__(self, *sides: Trace) -> None:
        self._agreed: set[tuple[str, str, int | None]] = set()
        loads = ([m.op for m in side.moments if m.operation in LOADS] for side in sides)
        self._first_loads = [min(ops, default=sys.maxsize) for ops in loads]
        self._loaded = False
        self._aside: dict[tuple[str, str, str, str], str] = {}
        self._has: set[tuple[str, str, str]] = set()
        self._split: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)

    def begin(self, moments: tuple[Moment, Moment]) -> None:
        """Set the step and phase of both runs to which the next tensors belong."""
        ops = zip(moments, self._first_loads, strict=True)
        self._loaded |= any(moment.op >= first for moment, first in ops)

    def aside(self, pair: Pair) -> str | None:
        """Return why a tensor is not compared; empty to skip it unreported, None to compare it."""
        optional = KINDS[pair.kind].optional if pair.kind in KINDS else ""
        key = pair.kind, pair.name, pair.rank
        if pair.unlike and pair.kind in OF_QUANTIZED:
            self._split[pair.kind, QUANTIZED_ALONE].setdefault(pair.name)
            return ""
        if optional in ("tensor", "value"):
            sides = {"candidate": pair.candidate, "reference": pair.reference}
            for side in (side for side, own in sides.items() if own):
                self._has |= {(side, pair.kind, pair.name), (side, pair.kind, _what(pair))}
        if pair.candidate is None or pair.reference is None:
            if optional not in ("tensor", "value"):
                return None
            other_choice = _is_switch(pair) and key not in self._agreed
            side = "candidate" if pair.candidate is None else "reference"
            unsaid = other_choice or (optional == "value" and self._loaded)
            return "" if unsaid else f"the {side} has none"
        if pair.rank is not None and pair.candidate.is_another_part(pair.reference):
            self._split[pair.kind, OTHER_PARTS].setdefault(pair.name)
            return ""
        if optional != "value" and not _is_switch(pair):
            return None
        if pair.is_alike:
            self._agreed.add(key)
            return None
        may = key not in self._agreed or (optional == "value" and self._loaded)
        return "it differs from the start" if may else None

    def note(self, pair: Pair, why: str) -> None:
        """Record that a tensor was not compared and why; an empty reason keeps it unreported."""
        lacks = "candidate" * (pair.candidate is None) or "reference" * (pair.reference is None)
        if why:
            self._aside.setdefault((lacks, pair.kind, _what(pair), pair.name), why)

    def left_out(self) -> dict[str, str]:
        """Return the tensors that were not compared, each with the reason."""
        found: dict[str, str] = {}
        some: dict[tuple[str, str], list[str]] = defaultdict(list)
        for (lacks, kind, what, name), why in self._aside.items():
            if (lacks, kind, what) not in self._has:
                found[f"{kind} {what}"] = why
                continue
            named = (lacks, kind, name) in self._has
            some[kind, f"{why} {'in some steps' if named else 'of that name'}"].append(name)
        for (kind, why), names in (*some.items(), *self._split.items()):
            found[f"{kind} {listed([*names], 1)}"] = why
        return found


def _is_switch(pair: Pair) -> bool:
    """Return whether a tensor records an on/off or text option of an optimizer's parameter group.

    An optimizer may lack the choice, or reach the same by another one.
    """
    held = pair.candidate or pair.reference
    return pair.kind == "hyper" and held is not None and held.pieces[0].dtype in ("bool", "uint8")


def _what(pair: Pair) -> str:
    """Return the part of a tensor's name by which the report groups tensors left uncompared."""
    key = TensorKey.of(pair.kind, pair.name)
    return key.part if pair.kind == "hyper" else key.owner  # of an average, all of a module
