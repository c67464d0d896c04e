"""Update oracle: compare one rank's weight updates with those of the workload's optimizer.

It starts from the rank's own state before the step and its reduced gradient, and takes rate, decay,
betas and eps from the workload, so it needs no reference. What it finds is kept next to the trace.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from pytest_precision.engine.capture import Capture
from pytest_precision.engine.engine import Engine
from pytest_precision.engine.groups import gradient, state_of
from pytest_precision.engine.observation import Observation, Place
from pytest_precision.errors import NotMeasurableError
from pytest_precision.matrix.cell import Cell
from pytest_precision.probes.declared_rule.oracle import held
from pytest_precision.probes.declared_rule.oracle.batch import (
    Batch,
    Clipping,
    Judge,
    PiecePart,
)
from pytest_precision.probes.declared_rule.oracle.plan import UpdatePlan
from pytest_precision.probes.declared_rule.oracle.update import NO_ROUNDING, Rounding, State
from pytest_precision.probes.declared_rule.oracle_log import Breach, OracleLog
from pytest_precision.recorders.weights import Watched, Weight, lists_of_at_most, measured_at_once
from pytest_precision.trace.files import write_whole
from pytest_precision.workloads.base import Workload
from pytest_precision.workloads.rules import OptimizerRule

CLIP_EPS = 1e-6
"""What the clipping of torch and of Megatron-LM adds to the norm before they divide by it."""

_NAMED = 3
"""Steps with a breach that are compared with the wrong rules; by then one is left, or none."""


class _Before(NamedTuple):
    """A shard of a parameter with its optimizer state and gradient before a step."""

    order: int
    group: int
    state: State
    clipping: Clipping
    fresh: bool


class UpdateOracle:
    """Checks each weight update of one rank against the workload's optimizer rule.

    Args:
        workload: declares the rule.
        rule: the declared rule.
        cell: where it is trained.
        log: takes what is found.
        explains: whether wrong updates are explained by known mistakes. Nobody reads that of a run
            into which something is planted.
    """

    def __init__(
        self,
        workload: Workload,
        rule: OptimizerRule,
        cell: Cell,
        log: OracleLog,
        *,
        explains: bool = True,
    ) -> None:
        self._workload = workload
        self._plan = UpdatePlan(workload, rule, cell)
        self._log = log
        log.frozen = self._plan.frozen
        self._judge = Judge(self._plan, log)
        self._reduced: dict[tuple[str, Place], Tensor] = {}
        self._kept_reduced, self._kept_moments = held.HostCopies(), held.HostCopies()
        self._before: dict[tuple[str, Place], _Before] = {}
        self._options: list[dict[str, Any]] = []
        self._steps_done = 0
        self._named = 0 if explains else _NAMED
        self._without: set[str] = set()
        self._checked_names: set[str] = set()
        self._places: dict[str, list[Observation]] = {}

    @torch.no_grad()
    def keep_reduced(self, engine: Engine) -> None:
        """Copy the gradients after their reduction over ranks and before clipping."""
        pieces = [
            piece
            for piece in engine.observe("reduce_grads", Capture())
            if piece.kind == "reduced_grad"
        ]
        copies = self._kept_reduced.of([piece.tensor.detach().reshape(-1) for piece in pieces])
        places = ((piece.name, piece.place) for piece in pieces)
        self._reduced = dict(zip(places, copies, strict=True))

    @torch.no_grad()
    def before(self, engine: Engine, watched: Sequence[Watched]) -> None:
        """Keep moments, gradients and weights of `watched` before an update, to check it later."""
        self._before = _with_copied_moments(self._starts(engine, watched), self._kept_moments)
        self._options = held.rule_numbers(engine, self._plan.formula)

    @torch.no_grad()
    def after(self, engine: Engine, watched: Sequence[Watched], step: int) -> None:
        """Check the update since `before` by the declared optimizer rule; log a difference."""
        right: list[Batch] = []
        wrong: list[Batch] = []
        breaches: list[Breach] = []
        for batch in self._batches(engine, watched):
            batch_breaches = self._judge.breaches(batch, step, self._steps_done)
            breaches += batch_breaches
            (wrong if batch_breaches else right).append(batch)
            self._log.judged += len(batch.parts)
        if wrong:
            self._explain(engine, wrong, right, breaches)
        self._steps_done += 1

    def _explain(
        self, engine: Engine, wrong: list[Batch], right: list[Batch], breaches: list[Breach]
    ) -> None:
        # Only here, so that a run that keeps its rule does not import what explains another one.
        from pytest_precision.probes.declared_rule.oracle.fitted_rules import fit

        self._log.break_at(breaches)
        for breach in breaches:
            if str(breach.group) not in self._log.apart:
                declared = self._plan.at(self._steps_done)[breach.group]
                options = held.of_tensor(engine, self._options, breach.name)
                self._log.apart[str(breach.group)] = [*held.different_options(options, declared)]
        if self._named < _NAMED:
            self._named += 1
            fit(self._plan, self._log, wrong, right, self._steps_done)

    def save(self, folder: Path) -> None:
        """Save beside a checkpoint the count of steps, and which weights lacked a gradient."""
        write_whole(
            _steps_file(folder, str(dist.get_rank())), [self._steps_done, sorted(self._without)]
        )

    def load(self, folder: Path) -> None:
        """Load the count of steps and the weights that `save` has put beside a checkpoint."""
        saved = [
            json.loads(path.read_text(encoding="utf-8"))
            for path in folder.glob(_steps_file(folder, "*").name)
        ]
        self._steps_done = max(steps for steps, _ in saved)
        self._without.update(*(names for _, names in saved))
        self._places.clear()  # another layout may continue
        self._checked_names.clear()

    def _starts(
        self, engine: Engine, watched: Sequence[Watched]
    ) -> dict[tuple[str, Place], _Before]:
        starts: dict[tuple[str, Place], _Before] = {}
        clip = cache(partial(self._clipping, engine))
        for watched_weight in watched:
            pieces = self._pieces(watched_weight.weight)
            if watched_weight.grad is None:
                self._without |= {piece.name for piece in pieces}
                continue
            fresh = not state_of(engine.optimizer, watched_weight.weight.parameter)
            grads = held.parts(engine, watched_weight.weight, watched_weight.grad)
            weights = [copy.reshape(-1) for copy in watched_weight.before]
            columns = self._columns(engine, watched_weight.weight, weights)
            for piece, grad, column in zip(pieces, grads, columns, strict=False):
                group = self._group(piece.name)
                if group is not None:
                    state, clipping = self._state(piece, grad, column, clip)
                    place = piece.name, piece.place
                    starts[place] = _Before(len(starts), group, state, clipping, fresh)
        return starts

    def _pieces(self, weight: Weight) -> list[Observation]:
        """Return which parts of which model tensors this rank's shard of a weight has."""
        if weight.name not in self._places:
            pieces = weight.pieces(weight.effective())
            meta_pieces = [replace(piece, tensor=piece.tensor.to("meta")) for piece in pieces]
            self._places[weight.name] = meta_pieces
        return self._places[weight.name]

    def _columns(
        self, engine: Engine, weight: Weight, parts: Sequence[Tensor]
    ) -> list[tuple[Tensor, ...]]:
        """Return (moments, weight) of each shard; [] if the optimizer's state cannot be checked."""
        formula, name = self._plan.formula, weight.name
        try:
            if name not in self._checked_names:
                state = state_of(engine.optimizer, weight.parameter)
                held.expect_known_state(engine.optimizer, formula, weight.parameter, state)
                self._checked_names |= {name} if state else set()
            return [*held.moments_and_weight(engine, weight, formula, parts)]
        except NotMeasurableError as reason:
            names = (piece.name for piece in self._pieces(weight))
            self._log.unjudged |= dict.fromkeys(names, str(reason))
            return []

    def _state(
        self,
        piece: Observation,
        grad: Tensor,
        column: tuple[Tensor, ...],
        clip: Callable[..., Clipping],
    ) -> tuple[State, Clipping]:
        """Return a shard's moments, weight and gradient before the step, and its clip factor."""
        reduced = self._reduced.get((piece.name, piece.place))
        if reduced is None or callable(self._workload.clip):
            return State.of([*column, grad.to("cpu", copy=True)]), Clipping(1.0, NO_ROUNDING)
        return State.of([*column, reduced]), clip(reduced.dtype, grad.dtype)

    def _group(self, name: str) -> int | None:
        """Return the parameter group of a tensor by name; None if its updates cannot be checked."""
        group = self._plan.groups.get(name)
        if group is None:
            self._log.unjudged[name] = "it is in none of the workload's groups"
        elif name in self._without:
            self._log.unjudged[name] = "it had no gradient in an earlier step"
            return None
        return group

    def _clipping(self, engine: Engine, *dtypes: torch.dtype) -> Clipping:
        """Return the factor by which gradients must be clipped, and its rounding error.

        The factor and the product are rounded to the dtypes of the gradients, and a clip may divide
        by the norm without adding anything to it.
        """
        scale = 1.0 if engine.scaler is None else 1 / engine.scaler.scale
        dtypes = *dtypes, torch.float32  # of the norm and its limit, also where gradients are fp64
        coarsest = max(map(Rounding.of, dtypes), key=lambda rounding: rounding.share)
        norm, limit = float(engine.grad_norm), self._workload.max_norm
        if limit is None or not math.isfinite(norm):  # of a step that has overflowed
            return Clipping(scale, coarsest)
        clipped = limit / (norm + CLIP_EPS)
        if clipped >= 1:
            wrong = "gradients below the limit of their norm are scaled up to it", clipped
            return Clipping(scale, coarsest, wrong)
        wrong = "gradients are not clipped", 1 / clipped
        return Clipping(scale * clipped, coarsest, wrong, (1.0, (norm + CLIP_EPS) / norm))

    def _batches(self, engine: Engine, watched: Sequence[Watched]) -> list[Batch]:
        """Return the shards after a step, concatenated by group and dtypes."""
        formula = self._plan.formula
        alike: dict[tuple[Any, ...], list[PiecePart]] = defaultdict(list)
        for weight in (watched_weight.weight for watched_weight in watched):
            if gradient(engine.optimizer, weight.parameter) is None:
                continue
            weight_parts = held.parts(engine, weight, weight.effective())
            columns = self._columns(engine, weight, weight_parts)
            for piece, after in zip(self._pieces(weight), columns, strict=False):
                place = piece.name, piece.place
                if place in self._before:
                    order, group, state, clipping, fresh = self._before[place]
                    storage = held.storage(engine, weight, formula, clipping.rounding, fresh=fresh)
                    dtypes = tuple(tensor.dtype for tensor in state.tensors)
                    key = group, storage, clipping, dtypes
                    most = measured_at_once(after[0].device)
                    alike[key] += PiecePart(order, piece, 0, state, tuple(after)).cut(most)
        return [
            Batch(group, storage, clipping, batched)
            for (group, storage, clipping, _), parts in alike.items()
            for batched in lists_of_at_most(parts, measured_at_once(parts[0].after[0].device))
        ]


def _with_copied_moments(
    starts: dict[tuple[str, Place], _Before], memory: held.HostCopies
) -> dict[tuple[str, Place], _Before]:
    """Copy the moments of shards, which the optimizer's step overwrites."""
    copies = iter(
        memory.of([moment for start in starts.values() for moment in start.state.moments])
    )
    return {
        place: start._replace(
            state=start.state._replace(moments=tuple(islice(copies, len(start.state.moments))))
        )
        for place, start in starts.items()
    }


def _steps_file(folder: Path, rank: str) -> Path:
    return folder / f"steps_made{rank}.json"
