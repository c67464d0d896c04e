"""Completeness of what is observed: `python ci/bench/seen.py [--only NAME ...]`.

Everything that is reachable from a model, its optimizers, schedulers, scaler, averages, an engine
and the generators is walked through, and one leaf at a time is changed after a step: one element of
a tensor, a number, a switch, a text, the state of a generator. A leaf *matters* if losses,
gradients, weights or a checkpoint differ within the next two steps, whatever is observed of it.
Each such leaf is changed twice in a recorded run, once with two more steps and once after the last
step, and has to be red at the first observation after the change, or named among what was not
compared.
The exit status is 1 if one is silent. The table is in docs/explanation/what-a-verdict-means.md.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import os
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import seen_leaves
import torch
import torch.distributed as dist
import xxhash
from seen_leaves import words
from seen_setups import CHANGED, LAYOUTS, LOOPS, Parts, loop, state_of

from pytest_precision.engine.capture import Capture
from pytest_precision.engine.engine import STEP_PHASES, Engine
from pytest_precision.engine.values import leaves as values
from pytest_precision.matrix.cell import Cell
from pytest_precision.modules import QuantizedParameter
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.compare.divergences import Judgement, judge
from pytest_precision.recorders.engine_recorder import record_engine
from pytest_precision.recorders.layout_job import LayoutJob
from pytest_precision.recorders.run_environment import SEED
from pytest_precision.recorders.scripts.script import script
from pytest_precision.recorders.scripts.script_recorder import record_script
from pytest_precision.trace.moment import EVERYTHING
from pytest_precision.trace.reader import Trace

SEQUENCES = {"midway": f"train{CHANGED + 2}", "at the end": f"train{CHANGED}"}
"""Runs with a change after step `CHANGED`."""

Change = Callable[[dict[str, Any]], None]
Effects = list[list[str]]
"""For each step after the change, digests of what a user would see of it."""


@dataclass
class Row:
    """What was found in one set-up.

    Attributes:
        name: of the set-up.
        leaves: number of leaves.
        matter: number of those that make a difference.
        red, named: numbers of changes that were red at once, or named.
        silent: changes that were neither, in words.
    """

    name: str
    leaves: int = 0
    matter: int = 0
    red: int = 0
    named: int = 0
    silent: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        numbers = (self.leaves, self.matter, self.red, self.named, len(self.silent))
        return f"| {self.name} | {' | '.join(map(str, numbers))} |"


def seeded() -> None:
    """Set all generators that are shared, so that each run is like the one before."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    np.random.seed(SEED)


class Loops:
    """A loop, recorded as a script is."""

    def __init__(self, make: Callable[[], Parts]) -> None:
        self._make = make

    def run(self, change: Change | None) -> Effects:
        """Train without a recorder; return what each step after the change shows."""
        shown: Effects = []

        def look(step: int, loss: torch.Tensor, parts: Parts) -> None:
            if step > CHANGED:
                own = [*parts.model.parameters()]
                shown.append([*map(_digest, (loss, *(p.grad for p in own), *own))])
                if step == CHANGED + 2:
                    shown[-1] += [_digest(state) for state in state_of(parts)]

        seeded()
        loop(None, None, self._make, change, look, steps=CHANGED + 2)
        return shown

    def record(self, change: Change | None, sequence: str, folder: Path) -> None:
        """Record the loop."""
        seeded()
        side = script(lambda cell, record: loop(cell, record, self._make, change))
        record_script(side, Cell(sequence=sequence), folder, EVERYTHING)


class Layouts:
    """A layout, recorded as a cell is."""

    def __init__(self, layout: Any, workload: Any, cell: Cell) -> None:
        self._layout = layout
        self._workload = workload
        self._cell = cell

    def _made(self, change: Change | None) -> Callable[[Any, Cell], Engine]:
        def made(workload: Any, cell: Cell) -> Engine:
            engine: Engine = self._layout(workload, cell)
            update = engine.optimizer_step
            done = [0]

            def changing() -> None:
                update()
                done[0] += 1
                if change is not None and done[0] == CHANGED:
                    change({"engine": engine})

            engine.optimizer_step = changing  # type: ignore[method-assign]
            return engine

        return made

    def run(self, change: Change | None) -> Effects:
        """Train without a recorder; return what each step after the change shows."""
        seeded()
        cell = self._cell.replace(sequence=SEQUENCES["midway"])
        cell = dataclasses.replace(cell, backend="emulated")
        engine = self._made(change)(self._workload(), cell)
        capture = Capture()
        engine.start(capture)
        torch.manual_seed(SEED)
        shown: Effects = []
        for step in range(1, CHANGED + 3):
            capture.begin()
            engine.forward_backward(step)
            losses = [seen.tensor.clone() for seen in capture.kept("loss")]
            grads = [engine.gradient(p) for p in engine.model.parameters()]
            before = [*map(_digest, (*losses, *grads))]
            for phase in STEP_PHASES[1:] if not engine.fused_step else STEP_PHASES[-1:]:
                getattr(engine, phase)()
            if step > CHANGED:
                shown.append([*before, *map(_digest, engine.model.parameters())])
        shown[-1].append(_digest(engine.state_dict()))
        return shown

    def record(self, change: Change | None, sequence: str, folder: Path) -> None:
        """Record the layout."""
        seeded()
        made = self._made(change)
        cell = self._cell.replace(sequence=sequence)
        segment = cell.segments[0]
        record_engine(LayoutJob(made, made, self._workload, cell, folder, segment, EVERYTHING))


def _digest(value: Any) -> str:
    """Return a digest of all numbers in a value."""
    held = xxhash.xxh3_128()
    for path, leaf in [("", value)] if isinstance(value, torch.Tensor) else values(value):
        tensor = leaf
        if isinstance(leaf, torch.Tensor):
            tensor = leaf.detach()
            tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            tensor = tensor.int_repr() if tensor.is_quantized else tensor
            tensor = tensor.dequantize() if isinstance(tensor, QuantizedParameter) else tensor
            if hasattr(tensor, "__tensor_flatten__"):
                inner = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
                held.update("".join(map(_digest, inner)).encode())
                continue
            flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
            tensor = flat.view(torch.uint8).numpy().tobytes()
        held.update(f"{path} {tensor!r}".encode())
    return held.hexdigest()


def roots_of(setup: Loops | Layouts) -> list[seen_leaves.Path]:
    """List the leaves that are there when one is to be changed."""
    found: list[seen_leaves.Path] = []
    setup.run(lambda roots: found.extend(seen_leaves.leaves(roots)))
    return found


def measure(
    name: str, setup: Loops | Layouts, folder: Path, *, every: int = 1, verbose: bool = False
) -> Row:
    """Change each leaf of one set-up, or every n-th."""
    plain = setup.run(None)
    if setup.run(None) != plain:
        raise RuntimeError(f"{name} does not repeat itself")
    row = Row(name)
    references = {}
    for when, sequence in SEQUENCES.items():
        references[when] = recorded(setup, None, sequence, folder / f"reference {when}")
    usual = {
        when: {
            *compared(setup, None, sequence, folder / f"again {when}", references[when]).left_out
        }
        for when, sequence in SEQUENCES.items()
    }
    for path in roots_of(setup)[::every]:
        row.leaves += 1
        change = partial(changed, path=path)
        try:
            matters = setup.run(change) != plain
        except Exception:  # whatever ends a run is seen by everybody
            row.matter = row.matter + 1
            row.red = row.red + 2
            continue
        if not matters:
            continue
        row.matter += 1
        for when, sequence in SEQUENCES.items():
            try:
                verdict = compared(setup, change, sequence, folder / "changed", references[when])
            except Exception:  # likewise
                row.red += 1
                continue
            first = verdict.first
            if first is not None and first.pair.moment.step <= CHANGED + 1:
                row.red += 1
            elif {*verdict.left_out} - usual[when]:
                row.named += 1
                if verbose:
                    print(f"  {words(path)}: { ({*verdict.left_out} - usual[when]) }")
            else:
                late = f", red at step {first.pair.moment.step}" if first is not None else ""
                row.silent.append(f"{words(path)} {when}{late}")
    return row


def changed(roots: dict[str, Any], path: seen_leaves.Path) -> None:
    """Change a leaf; a mistake of this file ends it, rather than be taken for one that is seen."""
    try:
        seen_leaves.change(roots, path)
    except Exception as error:
        sys.exit(f"cannot change {words(path)}: {error!r}")


def recorded(setup: Loops | Layouts, change: Change | None, sequence: str, folder: Path) -> Trace:
    """Record a set-up; return its trace."""
    folder.mkdir(exist_ok=True, parents=True)
    setup.record(change, sequence, folder)
    return Trace(folder, 1)


def compared(
    setup: Loops | Layouts, change: Change | None, sequence: str, folder: Path, reference: Trace
) -> Judgement:
    """Record a set-up with a change, and judge it."""
    return judge(recorded(setup, change, sequence, folder), reference, Criteria.of(None))


def setups() -> dict[str, Loops | Layouts]:
    """Return all set-ups by name."""
    found: dict[str, Loops | Layouts] = {name: Layouts(*one) for name, one in LAYOUTS.items()}
    return found | {name: Loops(make) for name, make in LOOPS.items()}


@contextlib.contextmanager
def one_rank() -> Iterator[Path]:
    """Be the only rank of a process group, with a folder for traces."""
    with tempfile.TemporaryDirectory() as folder:
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        if dist.is_initialized():
            yield Path(folder)
            return
        store = dist.FileStore(os.path.join(folder, "store"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            yield Path(folder)
        finally:
            dist.destroy_process_group()


def main() -> int:
    """Print the table; return 1 if a leaf is silent."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = setups()
    parser.add_argument("--only", nargs="+", choices=known, default=[*known], metavar="NAME")
    parser.add_argument("--every", type=int, default=1, help="change every n-th leaf alone")
    parser.add_argument("-v", "--verbose", action="store_true", help="say what was named")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| set-up | leaves | that matter | red at once | named | silent |")
    print("| --- | --- | --- | --- | --- | --- |")
    silent = 0
    # As in ranks: what was imported is not what a loop could reach, and is not looked through.
    gc.collect()
    gc.freeze()
    with one_rank() as folder:
        for name in given.only:
            place = folder / name.replace(" ", "-")
            row = measure(name, known[name], place, every=given.every, verbose=given.verbose)
            print(row, *(f"  silent: {line}" for line in row.silent), sep="\n", flush=True)
            silent += len(row.silent)
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(main())
