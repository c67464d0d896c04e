"""Join the forwards of two recordings by token, where they are not the same batches.

A token is known by the ids before it and its own. So a sequence that one side has decoded in a
batch is found in a forward of the other side, or in the piece of a packed row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_precision.rollout.module_outputs import ModuleOutputs
from pytest_precision.rollout.scored_case import PartedTokens, Shown
from pytest_precision.rollout.scorer import Scores
from pytest_precision.rollout.shown_call import ShownCall
from pytest_precision.rollout.token_rows import NO_TOKEN, SEQUENCE, TokenRows, common

Ids = tuple[int, ...]


class Counterpart(NamedTuple):
    """Which sequence of the reference a sequence is.

    Attributes:
        sequence: its number; one that the reference has not for tokens that it has not.
        tokens: how many tokens both have in common from the start.
    """

    sequence: int
    tokens: int


class JoinedForwards:
    """The forwards of one side that have the same weights.

    Args:
        calls: in their order.

    Attributes:
        calls: those.
        sequences: as far as any of the forwards goes on with them.
        numbers: for each call, the number in `sequences` of each of its own.
    """

    def __init__(self, calls: Sequence[ShownCall]) -> None:
        self.calls = calls
        self.sequences: list[Ids] = []
        self._ends: dict[Ids, int] = {}
        self.numbers = [
            [self._number(tuple(ids.tolist()), start) for ids, start in call.starts()]
            for call in calls
        ]

    def _number(self, ids: Ids, start: int) -> int:
        """Return the number of a sequence, which may go on with one that ended before `start`."""
        number = self._ends.pop(ids[:start], None) if start else self._ends.get(ids)
        if number is None:
            number = len(self.sequences)
            self.sequences.append(ids)
        self.sequences[number] = ids
        self._ends[ids] = number
        return number

    def outputs(self, counterparts: Sequence[Counterpart]) -> ModuleOutputs:
        """Return the outputs of all forwards, each token under its place."""
        joined = ModuleOutputs(TokenRows([]))
        for call, numbers in zip(self.calls, self.numbers, strict=True):
            table = torch.tensor([[*counterparts[number], number] for number in numbers])
            joined.join(call.outputs, partial(renamed, table))
        return joined

    def scored(
        self, counterparts: Sequence[Counterpart], *, planted: bool = False
    ) -> dict[int, dict[int, Tensor]]:
        """Return sequence of the reference to position to log-probability.

        Args:
            counterparts: of the sequences of this side.
            planted: whether they are those with a planted weight.
        """
        joined: dict[int, dict[int, Tensor]] = {}
        for call, numbers in zip(self.calls, self.numbers, strict=True):
            shown = call.logprobs if not planted else call.planted[1] if call.planted else {}
            for sequence, row in shown.items():
                counterpart, end = counterparts[numbers[sequence]], len(call.sequences[sequence])
                positions = range(end - len(row), end)
                pairs = zip(positions, row, strict=True)
                shared = {
                    position: score for position, score in pairs if position < counterpart.tokens
                }
                joined.setdefault(counterpart.sequence, {}).update(shared)
        return joined


UNSHARED = 1 << 20
"""What is added to the number of a sequence for tokens that the reference has not."""


def renamed(table: Tensor, codes: Tensor) -> Tensor:
    """Return the codes of tokens in the reference.

    Args:
        table: of each sequence of a forward, its number in the reference, how many tokens they have
            in common, and its number in the joined forwards.
        codes: of tokens of the forward.
    """
    sequence, shared, number = table[codes.clamp(min=0) // SEQUENCE].unbind(-1)
    position = codes % SEQUENCE
    # A token that the reference has not is that of a sequence which it has not.
    named = torch.where(position < shared, sequence, number + UNSHARED)
    return torch.where(codes == NO_TOKEN, NO_TOKEN, named * SEQUENCE + position)


class Aligned(NamedTuple):
    """Two sides whose tokens have the same names.

    Attributes:
        candidate, reference: what they have shown.
        sequences: of the reference, up to the last token that both score.
        absent: how many sequences of the reference the candidate has not.
        parted: where sequences go on with other tokens.
        planted: see `ScoredCase`.
    """

    candidate: Shown
    reference: Shown
    sequences: list[Tensor]
    absent: int
    parted: tuple[PartedTokens, ...]
    planted: tuple[str, dict[int, Tensor]] | None


def by_tokens(ours: JoinedForwards, theirs: JoinedForwards) -> Aligned:
    """Return both sides with each token of the candidate under its name in the reference."""
    counterparts = [counterpart_of(ids, theirs.sequences) for ids in ours.sequences]
    themselves = [Counterpart(number, len(ids)) for number, ids in enumerate(theirs.sequences)]
    sequences = [*theirs.sequences]
    strangers, parted = [], []
    for ids, (number, common_ids) in zip(ours.sequences, counterparts, strict=True):
        if not common_ids:
            strangers.append(ids)
        elif common_ids < min(len(ids), len(sequences[number])):
            other = sequences[number][common_ids]
            parted.append(PartedTokens(number, common_ids, ids[common_ids], other))
    both = ours.scored(counterparts), theirs.scored(themselves)
    wrong = theirs.scored(themselves, planted=True)
    rows: tuple[dict[int, Tensor], dict[int, Tensor]] = ({}, {})
    planted = {}
    for number in both[0].keys() & both[1].keys():
        positions = last_run(sorted(both[0][number].keys() & both[1][number].keys()))
        if positions:
            for row, shown in zip(rows, both, strict=True):
                row[number] = torch.stack([shown[number][position] for position in positions])
            sequences[number] = sequences[number][: positions[-1] + 1]
            if positions[-1] in wrong.get(number, {}):
                run = [wrong[number][place] for place in positions if place in wrong[number]]
                planted[number] = torch.stack(run)
    said = [*map(list, (*sequences, *strangers))]
    sides = [
        Shown({"recorded": Scores(logprobs, TokenRows([]), side.outputs(named), ids)}, table)
        for side, named, logprobs, ids, table in (
            (ours, counterparts, rows[0], said, ours.calls[0].table()),
            (theirs, themselves, rows[1], None, theirs.calls[0].table()),
        )
    ]
    shared = {counterpart.sequence for counterpart in counterparts if counterpart.tokens}
    absent = len(theirs.sequences) - len(shared)
    compared = [torch.tensor(ids).long() for ids in sequences]
    name = next((call.planted[0] for call in theirs.calls if call.planted), "")
    with_planted = (name, planted) if planted else None
    return Aligned(sides[0], sides[1], compared, absent, (*sorted(parted),), with_planted)


def counterpart_of(ids: Ids, sequences: Sequence[Ids]) -> Counterpart:
    """Return which of the sequences has most of the ids from the start; the same one if it can."""
    best = (0, False, 0)
    for number, other in enumerate(sequences):
        if other[0] == ids[0]:
            best = max(best, (common([*other], [*ids]), other == ids, -number))
    return Counterpart(-best[2], best[0])


def last_run(positions: Sequence[int]) -> list[int]:
    """Return the neighbouring positions at the end of some that ascend."""
    run: list[int] = []
    for position in reversed(positions):
        if run and position != run[-1] - 1:
            break
        run.append(position)
    return run[::-1]


def by_weights(calls: Sequence[ShownCall]) -> list[JoinedForwards]:
    """Return the forwards of a side, those with the same weights together."""
    groups: dict[object, list[ShownCall]] = {}
    for call in calls:
        groups.setdefault(call.weight_key(), []).append(call)
    return [JoinedForwards(group) for group in groups.values()]


def same_batches(ours: Sequence[ShownCall], theirs: Sequence[ShownCall]) -> bool:
    """Return whether the forwards of two sides have the same sequences, one by one."""

    def batches(calls: Sequence[ShownCall]) -> Iterator[list[list[int]]]:
        for call in calls:
            yield [ids.tolist() for ids in call.sequences]

    return [*batches(ours)] == [*batches(theirs)]
