"""Absences for `seen.py`: what a loop advances, held where it began, or taken away.

A leaf is *advanced* if it has not the same value before the first step and after each. A candidate
that never advances it is made alike for all: after each step, the leaf is *held*, which puts back
its first value, and a leaf that was not there before the first step is *removed* after each, where
it can be. An object that does nothing is made by holding all of its leaves at once.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import Any

import seen_leaves
from seen_leaves import Path, words
from seen_setups import Roots
from seen_sides import SetUp, digest

NOT_THERE = (LookupError, AttributeError)
"""What is raised where a path leads nowhere at present."""


class History:
    """Collects what each leaf was before the first step and after each.

    Attributes:
        values: path to a digest by step.
        removable: those that were made in the first step, and can be taken away.
    """

    def __init__(self) -> None:
        self.values: dict[Path, dict[int, str]] = defaultdict(dict)
        self.removable: set[Path] = set()

    def __call__(self, step: int, roots: Roots) -> None:
        """Look at all leaves."""
        for path in seen_leaves.leaves(roots):
            self.values[path][step] = _digest(seen_leaves.read(roots, path))
            if 0 not in self.values[path] and seen_leaves.can_be_removed(roots, path):
                self.removable.add(path)

    def moved(self, path: Path) -> bool:
        """Return whether a leaf had more than one value."""
        return len({*self.values[path].values()}) > 1


class Absence:
    """Keeps leaves from advancing during one run.

    Args:
        paths: of the leaves.
        history: of a run in which they advance.
        removed: take them away after each step, rather than put their first values back.

    Attributes:
        carried: whether a leaf was not, after a step, what it is where it advances. What a loop
            makes anew in each step is the same, whatever it was before.
    """

    def __init__(self, paths: list[Path], history: History, *, removed: bool = False) -> None:
        self._paths = paths
        self._history = history
        self._removed = removed
        self._first: dict[Path, Any] = {}
        self.carried = False

    def __str__(self) -> str:
        leaf_words = words(self._paths[0])
        if len(self._paths) > 1:
            leaf_words = f"all {len(self._paths)} of {words(_object_of(self._paths[0]))}"
        return f"{leaf_words} {'removed' if self._removed else 'held'}"

    def again(self) -> Absence:
        """Return the same for another run."""
        return Absence(self._paths, self._history, removed=self._removed)

    def __call__(self, step: int, roots: Roots) -> None:
        """Read each leaf where it is first there, and put it back or take it away later."""
        for path in self._paths:
            try:
                leaf = seen_leaves.read(roots, path)
            except NOT_THERE:
                self.carried |= step in self._history.values[path]
                continue
            self.carried |= self._history.values[path].get(step) != _digest(leaf)
            first = path not in self._first
            self._first.setdefault(path, leaf)
            try:
                if self._removed:
                    seen_leaves.remove(roots, path)
                elif not first:
                    seen_leaves.put(roots, path, self._first[path])
            except Exception as error:  # a mistake of this file is not taken for one that is seen
                sys.exit(f"{self} cannot be: {error!r}")


def _digest(value: Any) -> str:
    return repr(value) if isinstance(value, tuple) else digest(value)


def _object_of(path: Path) -> Path:
    """Return the path of the object that is held as a whole where it does nothing."""
    return path[: 2 if path[0][1] == "engine" else 1]


def absences(setup: SetUp, every: int = 1) -> tuple[int, list[Absence]]:
    """Return how many leaves a set-up advances, and the absences of every n-th and of objects."""
    history = History()
    setup.run(history)
    advanced = [path for path in history.values if history.moved(path) or path in history.removable]
    all_absences: list[Absence] = []
    for path in advanced[::every]:
        if history.moved(path):
            all_absences.append(Absence([path], history))
        if path in history.removable:
            all_absences.append(Absence([path], history, removed=True))
    objects: dict[Path, list[Path]] = defaultdict(list)
    for path in advanced:
        if 0 in history.values[path]:
            objects[_object_of(path)].append(path)
    all_absences += [Absence(parts, history) for parts in objects.values() if len(parts) > 1]
    return len(advanced[::every]), all_absences
