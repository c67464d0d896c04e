"""Set-ups of `seen.py` as sides: train one without a recorder, record it, judge two recordings."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from seen_setups import CHANGED, LAYOUTS, LOOPS, Between, Parts, loop, state_of

from pytest_precision.engine.capture import Capture
from pytest_precision.engine.engine import STEP_PHASES, Engine
from pytest_precision.engine.values import leaves as values
from pytest_precision.matrix.cell import Cell
from pytest_precision.modules import QuantizedParameter
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.compare.divergences import Judgement, judge
from pytest_precision.recorders.engine_recorder import record_engine
from pytest_precision.recorders.layout_job import LayoutJob
from pytest_precision.recorders.rank_probes import rank_probes
from pytest_precision.recorders.run_environment import SEED
from pytest_precision.recorders.scripts.script import script
from pytest_precision.recorders.scripts.script_recorder import record_script
from pytest_precision.registered import OF_PACKAGE
from pytest_precision.trace.moment import EVERYTHING
from pytest_precision.trace.reader import Trace

SEQUENCES = {"midway": f"train{CHANGED + 2}", "at the end": f"train{CHANGED}"}
"""Runs with a change after step `CHANGED`."""

Effects = list[list[str]]
"""For each step after `CHANGED`, digests of what a user would see of it."""


def seeded() -> None:
    """Set all generators that are shared, so that each run is like the one before."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    np.random.seed(SEED)


class Loops:
    """A loop, recorded as a script is."""

    def __init__(self, make: Callable[[], Parts]) -> None:
        self._make = make

    def run(self, between: Between | None) -> Effects:
        """Train without a recorder; return what each step after `CHANGED` shows."""
        shown: Effects = []
        trained: list[Parts] = []

        def look(step: int, loss: torch.Tensor, parts: Parts) -> None:
            trained[:] = [parts]
            if step > CHANGED:
                gradients = (parameter.grad for parameter in parts.model.parameters())
                shown.append([*map(digest, (loss, *gradients))])

        def between_and_after(step: int, roots: dict[str, Any]) -> None:
            if between is not None:
                between(step, roots)
            if step > CHANGED:
                shown[-1] += map(digest, trained[0].model.parameters())
            if step == CHANGED + 2:
                shown[-1] += map(digest, state_of(trained[0]))

        seeded()
        loop(None, None, self._make, between_and_after, look, steps=CHANGED + 2)
        return shown

    def record(self, between: Between | None, sequence: str, folder: Path) -> None:
        """Record the loop."""
        seeded()
        side = script(lambda cell, record: loop(cell, record, self._make, between))
        probes = rank_probes(OF_PACKAGE, "loop")
        record_script(side, Cell(sequence=sequence), folder, EVERYTHING, probes=probes)


class Layouts:
    """A layout, recorded as a cell is."""

    def __init__(self, layout: Any, workload: Any, cell: Cell) -> None:
        self._layout = layout
        self._workload = workload
        self._cell = cell

    def _watched_layout(self, between: Between | None) -> Callable[[Any, Cell], Engine]:
        def layout(workload: Any, cell: Cell) -> Engine:
            engine: Engine = self._layout(workload, cell)
            compute, update = engine.forward_backward, engine.optimizer_step
            done = [0]

            def computing(step: int) -> None:
                if between is not None and done[0] == 0:
                    between(0, {"engine": engine})
                compute(step)

            def updating() -> None:
                update()
                done[0] += 1
                if between is not None:
                    between(done[0], {"engine": engine})

            engine.forward_backward = computing  # type: ignore[method-assign]
            engine.optimizer_step = updating  # type: ignore[method-assign]
            return engine

        return layout

    def run(self, between: Between | None) -> Effects:
        """Train without a recorder; return what each step after `CHANGED` shows."""
        seeded()
        cell = self._cell.replace(sequence=SEQUENCES["midway"])
        cell = dataclasses.replace(cell, backend="emulated")
        engine = self._watched_layout(between)(self._workload(), cell)
        capture = Capture()
        engine.start(capture)
        torch.manual_seed(SEED)
        shown: Effects = []
        for step in range(1, CHANGED + 3):
            capture.begin()
            engine.forward_backward(step)
            losses = [observation.tensor.clone() for observation in capture.kept("loss")]
            grads = [engine.gradient(p) for p in engine.model.parameters()]
            before = [*map(digest, (*losses, *grads))]
            for phase in STEP_PHASES[1:] if not engine.fused_step else STEP_PHASES[-1:]:
                getattr(engine, phase)()
            if step > CHANGED:
                shown.append([*before, *map(digest, engine.model.parameters())])
        shown[-1].append(digest(engine.state_dict()))
        return shown

    def record(self, between: Between | None, sequence: str, folder: Path) -> None:
        """Record the layout."""
        seeded()
        layout = self._watched_layout(between)
        cell = self._cell.replace(sequence=sequence)
        segment = cell.segments[0]
        job = LayoutJob(layout, layout, self._workload, cell, folder, segment, EVERYTHING)
        record_engine(job._replace(probes=rank_probes(OF_PACKAGE, "engine")))


SetUp = Loops | Layouts


def setups() -> dict[str, SetUp]:
    """Return all set-ups by name."""
    all_setups: dict[str, SetUp] = {
        name: Layouts(*arguments) for name, arguments in LAYOUTS.items()
    }
    return all_setups | {name: Loops(make) for name, make in LOOPS.items()}


def digest(value: Any) -> str:
    """Return a digest of all numbers in a value."""
    hasher = xxhash.xxh3_128()
    for path, leaf in [("", value)] if isinstance(value, torch.Tensor) else values(value):
        tensor = leaf
        if isinstance(leaf, torch.Tensor):
            tensor = leaf.detach()
            tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            tensor = tensor.int_repr() if tensor.is_quantized else tensor
            tensor = tensor.dequantize() if isinstance(tensor, QuantizedParameter) else tensor
            if hasattr(tensor, "__tensor_flatten__"):
                inner = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
                hasher.update("".join(map(digest, inner)).encode())
                continue
            flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
            tensor = flat.view(torch.uint8).numpy().tobytes()
        hasher.update(f"{path} {tensor!r}".encode())
    return hasher.hexdigest()


def recorded(setup: SetUp, between: Between | None, sequence: str, folder: Path) -> Trace:
    """Record a set-up; return its trace."""
    folder.mkdir(exist_ok=True, parents=True)
    setup.record(between, sequence, folder)
    return Trace(folder, 1)


def judged(candidate: Trace, reference: Trace) -> Judgement:
    """Compare two recordings bit for bit."""
    return judge(candidate, reference, Criteria.of(None))
