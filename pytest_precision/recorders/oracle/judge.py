"""Judge: compare the state after a step with the rule, and name the wrong rule that fits it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch

from pytest_precision.engine.observation import Chunk, Observation
from pytest_precision.recorders.oracle.batch import Batch
from pytest_precision.recorders.oracle.estimate import declared, estimates
from pytest_precision.recorders.oracle.plan import UpdatePlan
from pytest_precision.recorders.oracle.update import UpdateScalars
from pytest_precision.recorders.oracle.wrong import WrongRule, wrong_rules
from pytest_precision.trace.oracle_log import Breach, OracleLog


class Judge:
    """Judges the updates of steps against the declared rule.

    Args:
        plan: what the workload declares.
        log: takes how near the rule was, and what explains where it was not.

    Attributes:
        plan: as given.
    """

    def __init__(self, plan: UpdatePlan, log: OracleLog) -> None:
        self.plan = plan
        self._log = log
        log.groups = len(plan.at(0))
        self._usual = 0

    def breaches(self, batches: Sequence[Batch], step: int, made: int) -> list[Breach]:
        """List the wrong tensors of a step that comes after `made` others."""
        return [breach for batch in batches for breach in self._of(batch, step, made)]

    def _scalars(self, group: int, made: int) -> list[UpdateScalars]:
        """Return the declared rule's scalars, in each arithmetic that kernels may use."""
        own = self.plan.at(made)[group]
        return [arithmetic(own, made + 1) for arithmetic in self.plan.formula.arithmetics]

    def _ways(self, batch: Batch, made: int) -> list[tuple[UpdateScalars, float]]:
        """Return all legitimate pairs of scalars and factors of the gradient for a step."""
        return [*product(self._scalars(batch.group, made), batch.clipping.forms)]

    def _of(self, batch: Batch, step: int, made: int) -> list[Breach]:
        ways = self._ways(batch, made)
        order = sorted(range(len(ways)), key=lambda number: number != self._usual)
        shares = {}
        for number in order:
            scalars, factor = ways[number]
            shares[number] = batch.worst(scalars, batch.storage, factor)
            if shares[number] <= 1:
                self._usual = number
                self._log.worst = max(self._log.worst, shares[number])
                return []
        kinds = (*self.plan.formula.moments, "master")
        found = [_located(batch, way, kinds, step) for way in ways]
        # What is right by the closest way must not be accused for what is wrong by all of them.
        closest = min(shares, key=lambda number: (len(found[number]), shares[number]))
        return found[closest]

    def fit(self, batches: Sequence[Batch], made: int) -> None:
        """Keep the wrong rules that explain this step and all earlier wrong ones.

        What the right rule explains need not be explained: a wrong rule may hold in one group.
        Where none fits, the options with which the right rule would are kept.

        Args:
            batches: of the step.
            made: number of steps before.
        """
        wrong = [batch for batch in batches if not self._right(batch, made)]
        alive = self._log.fits
        for batch in wrong:
            tried = self._tried(batch, made, alive)
            alive = [words for words in (tried if alive is None else alive) if tried.get(words)]
        if not alive:
            self._estimate(wrong, made)
        for batch in batches if alive else ():
            if all(batch is not one for one in wrong):
                tried = self._tried(batch, made, alive)
                spared = {words for words, explains in tried.items() if not explains}
                self._log.spared = sorted(spared.union(self._log.spared))
        self._log.fits = alive or []

    def _estimate(self, wrong: Sequence[Batch], made: int) -> None:
        """Keep, per group, the option values that explain this step and all earlier ones."""
        formula = self.plan.formula
        for batch in wrong:
            own, key = self.plan.at(made)[batch.group], str(batch.group)
            found: dict[str, list[float]] = {}
            for values in estimates(own, formula.numbers, made + 1, formula.arithmetics[0], batch):
                name = " ".join(values)
                parts = [(value, declared(own, one)) for one, value in values.items()]
                found[name] = [number for part in parts for number in part]
            kept = self._log.estimates.get(key, found)
            self._log.estimates[key] = {name: found[name] for name in found if name in kept}

    def _right(self, batch: Batch, made: int) -> bool:
        ways = self._ways(batch, made)
        return any(batch.worst(own, batch.storage, factor) <= 1 for own, factor in ways)

    def _tried(self, batch: Batch, made: int, among: Sequence[str] | None) -> dict[str, bool]:
        """Return, for each wrong rule, whether it explains a batch."""
        tried: dict[str, bool] = {}
        for arithmetic, right in zip(
            self.plan.formula.arithmetics, self._scalars(batch.group, made), strict=True
        ):
            rules = [*wrong_rules(self.plan, batch.group, made, arithmetic)]
            if batch.clipping.wrong is not None:
                words, factor = batch.clipping.wrong
                rules.append(WrongRule(words, right, factor=factor))
            for wrong in rules:
                words = wrong.words
                if (among is None or words in among) and not tried.get(words):
                    tried[words] = _fits(batch, wrong)
        return tried


def _fits(batch: Batch, wrong: WrongRule) -> bool:
    storage, factors = wrong.storage(batch.storage), batch.clipping.forms
    if all(batch.worst(wrong.scalars, storage, wrong.factor * own) > 1 for own in factors):
        return False
    if wrong.rounded is None:
        return True
    held = batch.after[wrong.rounded]
    return torch.equal(held.to(wrong.dtype).to(held.dtype), held)


def _located(
    batch: Batch, way: tuple[UpdateScalars, float], kinds: Sequence[str], step: int
) -> list[Breach]:
    """List the wrong tensors of a batch, each at the element that is furthest off."""
    found = []
    for kind, (exact, ratio, _) in enumerate(batch.ratios(way[0], batch.storage, way[1])):
        start = 0
        for part in batch.parts:
            own = ratio[start : start + part.size]
            place = int(own.argmax())
            if float(own[place]) > 1:
                wrong = float(batch.after[kind][start + place])
                found.append(
                    Breach(
                        step,
                        (kind, part.order),
                        kinds[kind],
                        part.piece.name,
                        _index(part.piece, part.start + place),
                        float(exact[start + place]),
                        wrong,
                        float(own[place]),
                        batch.group,
                    )
                )
            start += part.size
    return found


def _index(piece: Observation, place: int) -> tuple[int, ...]:
    """Return the index in the logical tensor of an element of a flattened piece."""
    if isinstance(piece.place, Chunk):
        inside = torch.unravel_index(torch.tensor(place), piece.place.sizes)
        return tuple(
            int(own) + offset for own, offset in zip(inside, piece.place.offsets, strict=True)
        )
    whole = torch.unravel_index(torch.tensor(piece.place.start + place), piece.shape)
    return tuple(map(int, whole))
