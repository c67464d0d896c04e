"""Find runs that prove nothing, and operations such as a save that changed training state.

Two broken runs agree as well as two sound ones (a zero gradient norm on both sides passes every
comparison), so each side is checked alone: `vacuous` finds runs in which nothing happened,
`disturbed` finds operations that must keep or restore the training state, and did not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Set

import torch
from torch import Tensor

from pytest_precision.engine.further import is_counted_anew
from pytest_precision.engine.kinds import KINDS, RESTORED_KINDS, is_made_late, lasting
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.precisions import COMPUTED, PRECISIONS
from pytest_precision.matrix.sequence import LOADS, OPERATIONS
from pytest_precision.matrix.tensor_key import whole_kind
from pytest_precision.parity.compare.bounds import Bitwise
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.compare.differing import Finding
from pytest_precision.parity.compare.divergences import finding_of, left_out
from pytest_precision.parity.compare.pairs import Pair, align
from pytest_precision.trace.moment import Moment
from pytest_precision.trace.reader import Entry, Trace

EVALUATIONS = frozenset(o.name for o in OPERATIONS.values() if o.held_out)
"""Operations that must have computed a loss."""

STILL = {
    operation.name: operation.leaves_state
    # The start of a load is the state at the save, which shows the settings too.
    | lasting("passing").difference(RESTORED_KINDS if operation.needs_save else ())
    | (frozenset() if operation.needs_save else lasting("setting"))
    for operation in OPERATIONS.values()
    if operation.leaves_state is not None
}
"""Operations that keep or restore the training state, each with the kinds that it may change."""


def vacuous(trace: Trace, cell: Cell, criteria: Criteria) -> str | None:
    """Return why a run proves nothing, such as a zero gradient norm; None if all is well.

    Kinds that the engine cannot show or that the test leaves unchecked are not required; `hidden`
    makes sure that the test has accepted the former.
    """
    for kind, guard in _GUARDS:
        if kind not in trace.header.unobservable and not _unchecked(criteria, kind):
            words = guard(trace, cell)
            if words is not None:
                return words
    return None


def _bad_loss(trace: Trace, cell: Cell) -> str | None:
    losses = [*recorded_tensors(trace, "loss")]
    if not losses:
        return "no loss was observed"
    for moment, loss in losses:
        if not bool(torch.isfinite(loss.float()).all()):
            return f"the loss is not finite at step {moment.step}"
    return None


def _no_gradient(trace: Trace, cell: Cell) -> str | None:
    for moment, norm in recorded_tensors(trace, "grad_norm"):
        if not bool(norm.any()):
            return f"the gradient norm is zero at step {moment.step}"
    return None


def _nothing_moved(trace: Trace, cell: Cell) -> str | None:
    moved = any(_moved_in(trace, moments) for moments in trace.segments())
    return None if moved else "no weight moved between the first step and the last"


def _no_evaluation(trace: Trace, cell: Cell) -> str | None:
    loss_moments = {moment for moment, _ in entries_of(trace, "loss")}
    evaluated = [moment for moment in loss_moments if moment.operation in EVALUATIONS]
    evaluations = sum(operation in EVALUATIONS for operation in cell.operations)
    if len(evaluated) < evaluations:
        return f"{len(evaluated)} of {evaluations} evaluations computed a loss"
    return None


def _not_quantized(trace: Trace, cell: Cell) -> str | None:
    if PRECISIONS[cell.precision].quantized and not any(entries_of(trace, "used_quantized")):
        return f"nothing was quantized, but the precision is {cell.precision}"
    return None


_GUARDS = (
    ("loss", _bad_loss),
    ("grad_norm", _no_gradient),
    ("master", _nothing_moved),
    ("loss", _no_evaluation),
    ("used_quantized", _not_quantized),
)
"""Each guard with the kind that it requires."""


def _unchecked(criteria: Criteria, kind: str) -> bool:
    return bool(criteria.of_kind(kind)[-1].criterion.left_out)


def hidden(trace: Trace, criteria: Criteria, compared: Set[str]) -> dict[str, str]:
    """Return the kinds of tensors that cannot be recorded and are not exempt, with the reasons.

    Reduction inside backward leaves no local gradients to show, but their sum is compared. Errors
    in anything else that an engine hides, and that no other kind shows, would go unseen.

    Args:
        trace: trace of one side.
        criteria: `unchecked` for the kind, or for all kinds, accepts it.
        compared: kinds that were compared.
    """
    shown = {kind for kind in KINDS if KINDS[kind].shown_by in compared} | {"grad"}
    reasons = {
        kind: reason
        for kind, reason in trace.header.unobservable.items()
        if kind not in shown
        and not any(_unchecked(criteria, key) for key in (kind, whole_kind(kind)))
    }
    return {
        kind: why
        for kind, why in reasons.items()
        if kind == whole_kind(kind) or whole_kind(kind) not in reasons
    }


def disturbed(trace: Trace, other_trace: Trace, criteria: Criteria) -> Finding | None:
    """Return the first tensor that an evaluation, save or skipped step changed; None if none did.

    For a load or a swap, it is the first tensor that is not as it was saved. The finding's
    candidate is the state after the operation, its reference the state before, or at the save.

    Args:
        trace: trace of the run to check.
        other_trace: trace of the other side, whose layout runs after a swap.
        criteria: the criteria by which the two sides agree.
    """
    beside = frozenset(left_out(trace, other_trace, criteria))
    for moment, source, start in _starts(trace, other_trace):
        is_same = source is trace
        aside = STILL[moment.operation] if is_same else STILL[moment.operation] | beside
        if trace.world_size_at(moment) != source.world_size_at(start):
            aside |= trace.local_kinds()
        for pair in align(trace, source, (moment, start), aside):
            if _may_begin(pair, moment) or f"{pair.kind} {pair.name}" in trace.header.given:
                continue
            criterion = criteria.of_tensor(pair.kind, pair.name).criterion
            finding = None
            if not criterion.left_out and not pair.is_alike:
                finding = finding_of(pair, Bitwise() if is_same else criterion)
            if finding is not None:
                return finding
    return None


def _may_begin(pair: Pair, moment: Moment) -> bool:
    """Return whether a load or a similar operation may rightly create or drop this tensor.

    A load makes the zeros that the saved optimizer had not made yet. Checkpoints are looked at when
    they are saved and loaded; some of what they hold is then seen for the first or the last time.
    What schedules have not changed before a save is shown after a load only.
    """
    if pair.kind in RESTORED_KINDS:
        return pair.reference is None or is_counted_anew(pair.name)
    if pair.kind == "state" and None in (pair.candidate, pair.reference):
        return True
    return pair.reference is None and moment.operation in LOADS and is_made_late(pair.kind)


def _starts(trace: Trace, other_trace: Trace) -> Iterator[tuple[Moment, Trace, Moment]]:
    """Yield each moment after a save or load, with the earlier moment whose state it must equal.

    A layout stores what it loads in its own way. If another layout has saved, as after a swap, the
    other trace shows what the layout holds in that state. Its own run cannot show this: a layout
    that writes and reads tensors in the same wrong order agrees with itself.
    """
    earlier_moment: Moment | None = None
    saved_moment: Moment | None = None
    swapped = saved_swapped = False
    for moment in trace.moments:
        if moment.phase in ("forward_backward", "reduce_grads", "clip_grads"):
            continue
        swapped ^= moment.operation == "swap"
        if moment.operation not in LOADS:
            if moment.operation in STILL and earlier_moment is not None:
                yield moment, trace, earlier_moment
        elif saved_moment is not None and swapped == saved_swapped:
            yield moment, trace, saved_moment
        elif saved_moment is not None and other_trace.moments == trace.moments:
            yield moment, other_trace, saved_moment
        if moment.operation == "save":
            saved_moment = moment
            saved_swapped = swapped
        earlier_moment = moment


def recorded_tensors(trace: Trace, kind: str) -> Iterator[tuple[Moment, Tensor]]:
    """Yield all recorded tensors of a kind, such as losses, with their moments."""
    for moment, entry in entries_of(trace, kind):
        yield moment, trace.tensor(entry)


def entries_of(trace: Trace, kind: str) -> Iterator[tuple[Moment, Entry]]:
    """Yield (moment, entry) for each tensor of a kind, such as losses, that a rank recorded."""
    for moment in trace.moments:
        for entry in trace.entries(moment, {kind}):
            yield moment, entry


def _moved_in(trace: Trace, moments: list[Moment]) -> bool:
    """Return whether a trace's masters changed from the first of `moments` to the last update."""
    updates = [moment for moment in moments if moment.phase == "optimizer_step"]
    if not updates:
        return False
    # Not by the place of a piece, which need not be described alike at both moments.
    start: dict[tuple[str, int], list[Entry]] = defaultdict(list)
    end: dict[tuple[str, int], list[Entry]] = defaultdict(list)
    for moment, pieces in ((moments[0], start), (updates[-1], end)):
        for entry in trace.entries(moment, {"master"}):
            pieces[entry.name, entry.rank].append(entry)
    return any(
        not trace.same_bytes(after, trace, before)
        for key in end.keys() & start
        for after, before in zip(end[key], start[key], strict=False)
    )


def computed_elsewhere(trace: Trace, cell: Cell) -> str | None:
    """Return why a bf16 or fp16 run has computed nothing in that dtype; None if it has.

    One matrix product in the dtype is enough: the layout decides which layers stay in fp32. In a
    model without matrix products, the dtypes of the weights that it used decide.
    """
    expected = COMPUTED.get(cell.precision)
    if expected is None:
        return None
    products = trace.header.products
    dtypes = products or {*trace.dtypes().get("used_param", {}).values()}
    if expected in dtypes:
        return None
    subject = "matrix products" if products else "no matrix product was seen, and weights"
    others = f" ({subject} were in {', '.join(sorted(dtypes))})" if dtypes else ""
    return f"nothing was computed in {expected}{others}, but the precision is {cell.precision}"
