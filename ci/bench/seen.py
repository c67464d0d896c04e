"""Completeness of what is observed: `python ci/bench/seen.py [--only NAME ...]`.

Everything that is reachable from a model, its optimizers, schedulers, scaler, averages, an engine
and the generators is walked through, one leaf at a time: one element of a tensor, a number, a
switch, a text, the state of a generator. There are two dimensions.

Change: a leaf is changed after a step. It *matters* if losses, gradients, weights or a checkpoint
differ within the next two steps, whatever is observed of it. Each such leaf is changed twice in a
recorded run, once with two more steps and once after the last step, and has to be red at the first
observation after the change, or named among what was not compared.
Absence: a leaf that the loop advances is kept from advancing by a candidate; see `seen_absence`. It
matters if any of these differ, or the leaf itself after a step. Each absence that matters has to be
red or named, whichever side it is on.

The exit status is 1 if one is silent. docs/explanation/what-a-verdict-means.md has the sums.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import seen_leaves
import torch
import torch.distributed as dist
from seen_absence import absences
from seen_leaves import words
from seen_setups import CHANGED, Between, Roots
from seen_sides import SEQUENCES, SetUp, judged, recorded, setups

from pytest_precision.trace.reader import Trace


@dataclass
class Row:
    """What was found in one set-up, in one dimension.

    Attributes:
        name: of the set-up.
        leaves: number of leaves; of absence, of those that the loop advances.
        matter: number of those that make a difference; of absence, number of absences that do.
        red, named: numbers of changes that were red at once, or named; of absences, red or named.
        silent: changes or absences that were neither, in words.
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


class Bench:
    """One set-up with the recordings that others are held against.

    Args:
        name: of the set-up.
        setup: it.
        folder: for its recordings.
        every: walk through every n-th leaf alone.
        verbose: print what was named.

    Raises:
        RuntimeError: two runs of the set-up differ.
    """

    def __init__(
        self, name: str, setup: SetUp, folder: Path, *, every: int = 1, verbose: bool = False
    ) -> None:
        self._setup = setup
        self._folder = folder
        self._every = every
        self._verbose = verbose
        self._plain = setup.run(None)
        if setup.run(None) != self._plain:
            raise RuntimeError(f"{name} does not repeat itself")
        self._name = name
        self._references: dict[str, tuple[Trace, set[str]]] = {}

    def changes(self) -> Row:
        """Change each leaf, or every n-th."""
        row = Row(self._name)
        for path in roots_of(self._setup)[:: self._every]:
            row.leaves += 1
            between = partial(changed, path=path)
            shows = self._shows(between)
            if shows is None:
                row.matter += 1
                row.red += len(SEQUENCES)
            elif shows:
                row.matter += 1
                for when in SEQUENCES:
                    self._count(row, f"{words(path)} {when}", between, when, last=CHANGED + 1)
        return row

    def absences(self) -> Row:
        """Keep each leaf, or every n-th, from advancing, and each object as a whole."""
        row = Row(self._name)
        row.leaves, all_absences = absences(self._setup, self._every)
        for absence in all_absences:
            shows = self._shows(absence)
            if shows is None:
                row.matter += 1
                row.red += 1
            elif shows or absence.carried:
                row.matter += 1
                self._count(row, str(absence), absence.again(), "midway")
        return row

    def _reference(self, when: str) -> tuple[Trace, set[str]]:
        """Return the recording of the set-up as it is, and what is named of another one like it."""
        if when not in self._references:
            first, second = (
                recorded(self._setup, None, SEQUENCES[when], self._folder / f"{which} {when}")
                for which in ("reference", "again")
            )
            self._references[when] = first, {*judged(second, first).left_out}
        return self._references[when]

    def _shows(self, between: Between) -> bool | None:
        """Return whether what is done to the set-up shows without a recorder; None if it ends it.

        Whatever ends a run is seen by everybody.
        """
        try:
            return self._setup.run(between) != self._plain
        except Exception:
            return None

    def _count(
        self, row: Row, change: str, between: Between, when: str, last: int | None = None
    ) -> None:
        """Record the set-up with something done to it, and count what a comparison says."""
        reference, usual = self._reference(when)
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            try:
                trace = recorded(self._setup, between, SEQUENCES[when], Path(folder))
            except Exception as error:
                raise RuntimeError(f"{row.name}: {change} cannot be recorded") from error
            # What is absent may be so on either side.
            verdicts = [judged(trace, reference)]
            if last is None:
                verdicts.append(judged(reference, trace))
        steps = [
            verdict.first.pair.moment.step for verdict in verdicts if verdict.first is not None
        ]
        if len(steps) == len(verdicts) and (last is None or max(steps) <= last):
            row.red += 1
            return
        named = [{*verdict.left_out} - usual for verdict in verdicts]
        if all(named):
            row.named += 1
            if self._verbose:
                print(f"  {change}: {named[0]}")
            return
        late = f", red at step {max(steps)}" if steps else ""
        row.silent.append(f"{change}{late}")


def roots_of(setup: SetUp) -> list[seen_leaves.Path]:
    """List the leaves that are there when one is to be changed."""
    paths: list[seen_leaves.Path] = []

    def between(step: int, roots: Roots) -> None:
        if step == CHANGED:
            paths.extend(seen_leaves.leaves(roots))

    setup.run(between)
    return paths


def changed(step: int, roots: Roots, path: seen_leaves.Path) -> None:
    """Change a leaf; a mistake of this file ends it, rather than be taken for one that is seen."""
    if step != CHANGED:
        return
    try:
        seen_leaves.change(roots, path)
    except Exception as error:
        sys.exit(f"cannot change {words(path)}: {error!r}")


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


DIMENSIONS: dict[str, tuple[str, Callable[[Bench], Row]]] = {
    "change": ("leaves | that matter | changes red at once", Bench.changes),
    "absence": ("advanced leaves | absences that matter | red", Bench.absences),
}
"""Name to the first columns of a table, and what makes its rows."""


def main() -> int:
    """Print a table for each dimension; return 1 if a leaf is silent."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    all_setups = setups()
    parser.add_argument(
        "--only", nargs="+", choices=all_setups, default=[*all_setups], metavar="NAME"
    )
    parser.add_argument("--dimension", nargs="+", choices=DIMENSIONS, default=[*DIMENSIONS])
    parser.add_argument("--every", type=int, default=1, help="walk through every n-th leaf alone")
    parser.add_argument("-v", "--verbose", action="store_true", help="say what was named")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    silent = 0
    # As in ranks: what was imported is not what a loop could reach, and is not looked through.
    gc.collect()
    gc.freeze()
    with one_rank() as folder:
        for dimension in args.dimension:
            columns, rows = DIMENSIONS[dimension]
            print(f"| set-up | {columns} | named | silent |")
            print("| --- | --- | --- | --- | --- | --- |")
            for name in args.only:
                place = folder / dimension / name.replace(" ", "-")
                bench = Bench(name, all_setups[name], place, every=args.every, verbose=args.verbose)
                row = rows(bench)
                print(row, *(f"  silent: {line}" for line in row.silent), sep="\n", flush=True)
                silent += len(row.silent)
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(main())
