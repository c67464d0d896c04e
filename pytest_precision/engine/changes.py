"""Find Python attributes and random states that differ from those at the first update.

Frameworks and wrappers keep other attributes than a plain loop, so what they start with is nobody's
concern. What changes later may decide about numbers: it is shown from then on. Digests of the start
are kept, by which a comparison knows what has not changed on a side that does not show it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from pytest_precision.engine.attributes import leaf_observation
from pytest_precision.engine.observation import Observation
from pytest_precision.engine.values import fingerprint, start_of

NamedLeaves = Iterable[tuple[str, Any]]


class Changes:
    """Compares named values with their state before the first update, and yields changed ones.

    Args:
        kind: of what is shown.
        switches_advance: whether a start is kept of a switch, too, which is on or off: frameworks
            turn theirs in other places, where numbers, texts and tensors are advanced alike.

    Attributes:
        kind: as given.
        starts: name to what `start_of` says of its value when it was first seen.
        begun: whether there was a start.
    """

    def __init__(self, kind: str, *, switches_advance: bool = True) -> None:
        self.kind = kind
        self._switches_advance = switches_advance
        self.starts: dict[str, str] = {}
        self._start: dict[str, object] = {}
        self._described: dict[object, str] = {}
        self._shows_all = False
        self.begun = False

    def begin(self, leaves: NamedLeaves) -> None:
        """Store each named value before the first update, unless the name is stored already."""
        self.begun = True
        for name, leaf in leaves:
            if name not in self._start:
                self._store(name, leaf, fingerprint(leaf))

    def show_all(self) -> None:
        """Yield every value from now on, as one that was loaded may have changed before."""
        self._shows_all = True

    def observe(self, leaves: NamedLeaves) -> Iterator[Observation]:
        """Yield an observation of each value that has changed since before the first update."""
        yield from self.present(
            (name, leaf) for name, leaf in leaves if self._shows_all or self.differs(name, leaf)
        )

    def present(self, leaves: NamedLeaves) -> Iterator[Observation]:
        """Yield an observation of each value, changed or not."""
        return (leaf_observation(self.kind, name, leaf) for name, leaf in leaves)

    def differs(self, name: str, leaf: Any) -> bool:
        """Return whether a value has changed since `begin` saved it; False for a new name."""
        if not self.begun:
            return False
        leaf_fingerprint = fingerprint(leaf)
        if name not in self._start:
            self._store(name, leaf, leaf_fingerprint)
        return self._start[name] != leaf_fingerprint

    def _store(self, name: str, leaf: Any, leaf_fingerprint: object) -> None:
        self._start[name] = leaf_fingerprint
        if isinstance(leaf, bool) and not self._switches_advance:
            return
        # Most of a model's thousand attributes have few values.
        if leaf_fingerprint not in self._described:
            self._described[leaf_fingerprint] = start_of(leaf)
        self.starts[name] = self._described[leaf_fingerprint]


class Since:
    """The initial values of a run's settings and attributes, to detect later changes.

    Attributes:
        settings: of torch's modules; see `modes.module_settings`.
        trained: name to whether a parameter gets a gradient.
        attributes, policies, generators, options: show what has changed.
        means: shows changes of how a loop computes, such as numbers of hooks, which prove nothing.
    """

    def __init__(self) -> None:
        self.settings: Mapping[str, Mapping[str, Any]] = {}
        self.trained: dict[str, bool] = {}
        self.attributes = Changes("attribute", switches_advance=False)
        self.means = Changes("attribute")
        self.policies = Changes("policy")
        self.generators = Changes("host_rng")
        self.options = Changes("hyper")


def generators() -> Iterator[tuple[str, Any]]:
    """Yield the states of the global random generators of Python and numpy."""
    yield "python", repr(random.getstate())
    state = np.random.get_state(legacy=False)
    # numpy takes 4 ms to write an array of this size as text, which every step would wait for.
    key = state["state"]["key"].tolist()
    yield "numpy", repr({**state, "state": {**state["state"], "key": key}})
