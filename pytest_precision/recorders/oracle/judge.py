"""Judge: compare an optimizer's step with the fp64 result of the workload's declared rule."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from pytest_precision.engine.observation import index_within
from pytest_precision.recorders.oracle.batch import Batch
from pytest_precision.recorders.oracle.plan import UpdatePlan
from pytest_precision.recorders.oracle.update import UpdateScalars
from pytest_precision.trace.oracle_log import Breach, OracleLog


class Judge:
    """Compares a run's weight updates with those of the optimizer rule that its test declares.

    Args:
        plan: what the workload declares.
        log: takes how near the rule was.

    Attributes:
        plan, log: as given.
    """

    def __init__(self, plan: UpdatePlan, log: OracleLog) -> None:
        self.plan = plan
        self.log = log
        log.groups = len(plan.at(0))
        self._usual = 0

    def breaches(self, batches: Sequence[Batch], step: int, made: int) -> list[Breach]:
        """Return the worst element of each tensor that a step updated otherwise than declared."""
        return [breach for batch in batches for breach in self._of(batch, step, made)]

    def scalars(self, group: int, made: int) -> list[UpdateScalars]:
        """Return a step's scalars (rate, betas), once per legitimate way to round them."""
        own = self.plan.at(made)[group]
        return [arithmetic(own, made + 1) for arithmetic in self.plan.formula.arithmetics]

    def ways(self, batch: Batch, made: int) -> list[tuple[UpdateScalars, float]]:
        """Return all legitimate ways to compute a step: pairs of scalars and a clipping factor."""
        return [*product(self.scalars(batch.group, made), batch.clipping.forms)]

    def _of(self, batch: Batch, step: int, made: int) -> list[Breach]:
        ways = self.ways(batch, made)
        order = sorted(range(len(ways)), key=lambda number: number != self._usual)
        shares = {}
        for number in order:
            scalars, factor = ways[number]
            shares[number] = batch.worst(scalars, batch.storage, factor)
            if shares[number] <= 1:
                self._usual = number
                self.log.worst = max(self.log.worst, shares[number])
                return []
        kinds = (*self.plan.formula.moments, "master")
        found = [_located(batch, way, kinds, step) for way in ways]
        # What is right by the closest way must not be accused for what is wrong by all of them.
        closest = min(shares, key=lambda number: (len(found[number]), shares[number]))
        return found[closest]


def _located(
    batch: Batch, way: tuple[UpdateScalars, float], kinds: Sequence[str], step: int
) -> list[Breach]:
    """Return the worst element of each tensor whose update exceeds its rounding bound."""
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
                        index_within(part.piece, part.start + place),
                        float(exact[start + place]),
                        wrong,
                        float(own[place]),
                        batch.group,
                    )
                )
            start += part.size
    return found
