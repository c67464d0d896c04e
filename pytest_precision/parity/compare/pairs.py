"""Match the tensors of two recorded runs, each joined from the pieces that its ranks hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from pytest_precision.engine.kinds import causal_rank
from pytest_precision.errors import RecordingError
from pytest_precision.matrix.sequence import LOADS
from pytest_precision.parity.compare.logical_tensor import LogicalTensor, assemble
from pytest_precision.parity.compare.tensors import with_values
from pytest_precision.trace.moment import END, STATE, Moment
from pytest_precision.trace.reader import Entry, Trace


@dataclass(frozen=True)
class Pair:
    """One tensor of both runs at one step and phase: candidate's and reference's, None if missing.

    Attributes:
        moment: the candidate's moment.
        kind: kind of both tensors.
        name: name of both tensors.
        rank: the rank whose tensor it is, where every rank has one of its own.
        candidate: the layout under test.
        reference: what it must agree with.
        unlike: whether on one side alone every rank has a tensor of its own under this name.
    """

    moment: Moment
    kind: str
    name: str
    rank: int | None
    candidate: LogicalTensor | None
    reference: LogicalTensor | None
    unlike: bool = False

    @property
    def both(self) -> tuple[LogicalTensor, LogicalTensor]:
        """Return the pair's candidate and reference tensors, of which neither may be missing."""
        assert self.candidate is not None
        assert self.reference is not None
        return self.candidate, self.reference

    @property
    def tensors(self) -> tuple[Tensor, Tensor] | None:
        """Return both full tensors `with_values`; None if a run lacks it or its full values."""
        if self.candidate is None or self.reference is None:
            return None
        ours, theirs = self.candidate.tensor, self.reference.tensor
        return None if ours is None or theirs is None else with_values(ours, theirs)

    @property
    def is_alike(self) -> bool:
        """Whether candidate and reference both have the tensor, with the same bytes."""
        ours, theirs = self.candidate, self.reference
        return ours is not None and theirs is not None and ours.same_bytes(theirs)


def common_moments(candidate: Trace, reference: Trace) -> list[tuple[Moment, Moment]]:
    """Return the matching points of both runs, such as step 2 after backward, in order.

    If both ran the same operations, every moment has a partner. If they ran different ones
    (train-eval-train against train-only), the start and the train steps have one, and so has the
    end if both end with a train step. A load's partner is the state after the same step.

    Raises:
        RecordingError: if one side trains more steps than the other.
    """
    if candidate.moments == reference.moments:
        return list(zip(candidate.moments, reference.moments, strict=True))
    ours, theirs = (
        {(m.step, m.phase): m for m in side.moments if m.operation in ("init", "train")}
        for side in (candidate, reference)
    )
    if {key for key in ours.keys() ^ theirs.keys() if key[1] != END}:
        raise RecordingError(
            f"expected both sides to train the same steps but the candidate trains "
            f"{max(step for step, _ in ours)} and the reference {max(step for step, _ in theirs)}; "
            "record both for the same steps"
        )
    pairs = [(moment, theirs[key]) for key, moment in ours.items() if key in theirs]
    loads = [[m for m in side.moments if m.operation in LOADS] for side in (candidate, reference)]
    if not all(loads):
        pairs += ((m, theirs[m.step, STATE]) for m in loads[0] if (m.step, STATE) in theirs)
        pairs += ((ours[m.step, STATE], m) for m in loads[1] if (m.step, STATE) in ours)
    return sorted(pairs, key=lambda pair: pair[0].op)


def align(
    candidate: Trace,
    reference: Trace,
    moments: tuple[Moment, Moment],
    left_out: frozenset[str] = frozenset(),
) -> Iterator[Pair]:
    """Yield each tensor of one moment from both runs, in the order in which a step computes them.

    Args:
        candidate: one side.
        reference: the other.
        moments: two that belong together, from `common_moments`.
        left_out: kinds that are not compared.
    """
    candidate_entries = pieces_by_tensor(candidate, moments[0], left_out)
    reference_entries = pieces_by_tensor(reference, moments[1], left_out)
    keys = [*candidate_entries, *(key for key in reference_entries if key not in candidate_entries)]
    local_keys = {key[:2] for key in keys if key[2] is not None}
    shared = {key[:2] for key in keys if key[2] is None}
    for kind, name, rank in sorted(keys, key=lambda key: causal_rank(key[0])):
        key = kind, name, rank
        yield Pair(
            moments[0],
            kind,
            name,
            rank,
            assemble(candidate, candidate_entries[key]) if key in candidate_entries else None,
            assemble(reference, reference_entries[key]) if key in reference_entries else None,
            (kind, name) in local_keys & shared,
        )


def pieces_by_tensor(
    trace: Trace, moment: Moment, left_out: frozenset[str]
) -> dict[tuple[str, str, int | None], list[Entry]]:
    """Group the pieces that ranks recorded at one moment by the tensor that they belong to."""
    tensors: dict[tuple[str, str, int | None], list[Entry]] = {}
    for entry in trace.entries(moment, trace.kinds_at(moment) - left_out):
        key = entry.kind, entry.name, entry.rank if entry.local else None
        tensors.setdefault(key, []).append(entry)
    return tensors
