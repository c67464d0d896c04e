"""Recognize two sides that update different weights or have different numbers of losses."""

from __future__ import annotations

from math import prod

from pytest_precision.matrix.tensor_key import TensorKey
from pytest_precision.parity.compare.differing import ONE_SIDED, Finding, Tally
from pytest_precision.parity.compare.divergences import Judgement
from pytest_precision.parity.compare.logical_tensor import LogicalTensor
from pytest_precision.parity.compare.pairs import Pair
from pytest_precision.parity.words import listed

NAMED_RANKS = 8
"""Ranks that a line names."""


def other_weights(finding: Finding, judgement: Judgement) -> str:
    """Name weights that one run's optimizer updates and the other's does not; empty if none.

    An optimizer shows the rates of what it updates. The models have weights of the same names, or
    it is these that differ.
    """
    moment = finding.pair.moment
    kind = finding.pair.kind
    weights = judgement.spread.get(("param", moment.op))
    if kind != "lr" or finding.problem not in ONE_SIDED or weights is None:
        return ""
    if any(other.problem in ONE_SIDED for other in weights.findings):
        return ""
    rates = [f for f in judgement.spread[kind, moment.op].findings if f.pair.moment == moment]
    ours, theirs = ([f for f in rates if f.problem == side] for side in ("extra", "missing"))
    if not ours or not theirs:
        return ""
    our_names, their_names = (
        listed(list(dict.fromkeys(finding.pair.name for finding in side)), 1)
        for side in (ours, theirs)
    )
    return f"{our_names} here, {their_names} in the reference"


COMPARE_SUMS = (
    "No sum in another order has the same bits. Where the numbers are to differ, compare with a "
    'tolerance, such as {"default": norm(rel=1e-5)}: of the losses, it compares the sum'
)
"""What compares two sides that split a batch into other numbers of microbatches."""


def other_number(judgement: Judgement, op: int) -> str:
    """Return the two runs' numbers of microbatches in operation `op`, in words; empty if equal.

    Where not all ranks have others, it names those that have. It is empty, too, where a side shows
    no loss but may have run a forward: nothing counts those.

    Args:
        judgement: of both sides.
        op: index of the step's operation.
    """
    tally = judgement.spread.get(("loss", op))
    if tally is None:
        return ""
    ours, theirs = tally.numbers
    for finding in tally.findings:
        pair = finding.pair
        if finding.problem == "shape" and pair.candidate and pair.reference:
            shapes = (side.pieces[0].shape for side in (pair.candidate, pair.reference))
            ours, theirs = map(prod, shapes)  # of an engine, a vector of them
    without = [side for side, number in enumerate((ours, theirs)) if not number]
    if ours == theirs or not all(_runs_no_forward(judgement, side, op) for side in without):
        return ""
    plural = "" if ours == 1 else "es"
    words = f"{ours} microbatch{plural} here, {theirs} in the reference"
    return words + _only_ranks(tally)


def _only_ranks(tally: Tally) -> str:
    """Return in words which ranks alone have more losses or fewer; empty if all do."""
    pairs = [finding.pair for finding in tally.findings if finding.is_one_sided]
    sides = [side for pair in pairs for side in (pair.candidate, pair.reference) if side]
    ranks = sorted({pair.rank for pair in pairs if pair.rank is not None})
    if not ranks or len(ranks) == max(max(side.trace.world_sizes) for side in sides):
        return ""
    return f" (on rank{'s' * (len(ranks) > 1)} {listed([*map(str, ranks)], NAMED_RANKS)})"


def extra_update(finding: Finding, judgement: Judgement) -> str:
    """Return in words which run updates weights without a forward in the finding's step; else "".

    That run has losses in other steps, so that they are seen.
    """
    moment = finding.pair.moment
    of_losses = {op: t.numbers for (kind, op), t in judgement.spread.items() if kind == "loss"}
    if finding.pair.kind != "loss" or moment.operation != "train":
        return ""
    ours, theirs = numbers = of_losses[moment.op]
    for side, who in enumerate(("candidate", "reference")):
        has_losses = any(step_numbers[side] for step_numbers in of_losses.values())
        if has_losses and not numbers[side] and _runs_no_forward(judgement, side, moment.op):
            then = f"again after step {moment.step - 1}" if moment.step > 1 else "at once"
            return (
                f"the {who}'s optimizer steps {then}, without a forward before it; losses of "
                f"step {moment.step}: {ours} here, {theirs} in the reference"
            )
    return ""


def _runs_no_forward(judgement: Judgement, side: int, op: int) -> bool:
    """Return whether run `side` records what its forwards read, but ran no forward in step `op`.

    A missing loss does not tell that no forward ran: `torch.autograd.grad` shows none.
    """
    forwards = {forward_op for run, forward_op in judgement.forwards if run == side}
    return bool(forwards) and op not in forwards


def number_lines(finding: Finding, judgement: Judgement) -> list[str]:
    """Return a line if the runs' numbers of microbatches differ: it, or what compares such runs."""
    number = other_number(judgement, finding.pair.moment.op)
    if finding.pair.kind == "loss":
        several = all(judgement.spread["loss", finding.pair.moment.op].numbers)
        return [COMPARE_SUMS] if number and several and finding.problem != "shape" else []
    return [f"Step {finding.pair.moment.step} has {number}"] if number else []


def clip_lines(finding: Finding, judgement: Judgement) -> list[str]:
    """Return a line if the runs clip gradients another number of times in a finding's step."""
    moment = finding.pair.moment
    tally = judgement.spread.get(("grad_norm", moment.op))
    if tally is None or moment.operation != "train" or len({*tally.numbers}) == 1:
        return []
    ours, theirs = (f"{number} time{'' if number == 1 else 's'}" for number in tally.numbers)
    return [f"In step {moment.step} gradients were clipped {ours}, {theirs} in the reference"]


def sum_of_grad_lines(finding: Finding) -> list[str]:
    """Return a line on gradients after a microbatch, of which the runs have different numbers."""
    pair = finding.pair
    if pair.kind != "grad" or pair.candidate is None or pair.reference is None:
        return []
    ours, theirs = (
        len({e.name for e in side.trace.entries(pair.moment, {"loss"}) if e.rank == 0})
        for side in (pair.candidate, pair.reference)
    )
    if ours == theirs:
        return []
    return [
        f"grad is a sum over the microbatches so far; step {pair.moment.step} has {ours} here, "
        f"{theirs} in the reference: reduced_grad, after the last one, is what to compare"
    ]


def rate_has_moved(pair: Pair) -> bool:
    """Return whether both runs began with the same learning rate, which a schedule has moved since.

    A script shows its optimizer at the first update; a schedule that is stepped for each microbatch
    has gone on by then.
    """
    begun = [_initial_rates(side, pair) for side in (pair.candidate, pair.reference) if side]
    return len(begun) == 2 and bool(begun[0]) and begun[0] == begun[1]


def _initial_rates(side: LogicalTensor, pair: Pair) -> list[float]:
    """Return the `initial_lr` that torch's scheduler keeps for a weight's parameter group."""
    if pair.kind != "lr" or pair.moment.operation != "init":
        return []
    name = TensorKey(pair.name, "initial_lr").name("hyper")
    entries = side.trace.entries(pair.moment, {"hyper"})
    rate_entries = [entry for entry in entries if entry.name == name and not entry.digest]
    return [float(side.trace.tensor(entry)) for entry in rate_entries]
