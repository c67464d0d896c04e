"""A buffer for tensors that an engine must copy before the end of a phase.

A `ModuleHook` is how it learns of a forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pytest_precision.engine.observation import Observation, cloned


class Capture:
    """A buffer of tensors that a training engine copies before its train step overwrites them.

    Some of what a phase has computed is gone when the phase ends: the weights that a forward read,
    the loss of a microbatch. An engine hands these over at once, and `observe` shows them later.

    Args:
        snapshot: returns an observation that later phases cannot change.

    Attributes:
        overflow_factor: multiplies the loss; infinity makes the gradients of this rank overflow.
    """

    def __init__(
        self,
        *,
        snapshot: Callable[[Observation], Observation] = cloned,
    ) -> None:
        self.overflow_factor = 1.0
        self._snapshot = snapshot
        self._kept: dict[str, dict[str, list[Observation]]] = {}
        self._keeps = True

    def begin(self, *, keeps: bool = True) -> None:
        """Clear the buffer before a step's forward, and set whether `keep` buffers anything.

        Args:
            keeps: whether anything is kept from now on.
        """
        self._kept.clear()
        self._keeps = keeps

    def keep(self, kind: str, name: str, seen: Iterable[Observation]) -> None:
        """Copy the observations `seen` into the buffer, unless it has some of this kind and name.

        Args:
            kind: kind of the observations.
            name: tells them apart from others of the kind.
            seen: the observations; a generator runs only if they are kept.
        """
        if not self._keeps:
            return
        by_name = self._kept.setdefault(kind, {})
        if name not in by_name:
            by_name[name] = [*self._copies(seen)]

    def _copies(self, seen: Iterable[Observation]) -> Iterator[Observation]:
        """Yield a copy of each observation; neighbours that show one tensor share one copy of it.

        An option of a parameter group is shown of each of its parameters, in thousands.
        """
        earlier_observation = copied_observation = None
        for observation in seen:
            if (
                earlier_observation is not None
                and copied_observation is not None
                and observation.shows_as(earlier_observation)
            ):
                copied_observation = copied_observation.of_name(observation.name)
            else:
                copied_observation = self._snapshot(observation)
            earlier_observation = observation
            yield copied_observation

    def drop(self, kind: str, name: str) -> None:
        """Remove the buffered observations of this kind and name."""
        self._kept.get(kind, {}).pop(name, None)

    def rename(self, named: Callable[[str], str]) -> None:
        """Rename every buffered observation by a function from old to new name."""
        self._kept = {
            kind: {
                named(name): [
                    observation.of_name(named(observation.name)) for observation in observations
                ]
                for name, observations in by_name.items()
            }
            for kind, by_name in self._kept.items()
        }

    def kept(self, kind: str) -> Iterator[Observation]:
        """Yield the buffered observations of this kind, in order of arrival."""
        for observations in self._kept.get(kind, {}).values():
            yield from observations


class ModuleHook:
    """A forward hook that calls a function; a copy or pickle of the hooked module calls nothing.

    A deep copy of the module, such as an average of weights, or a pickle of it has this hook too:
    there it holds nothing, so that it neither copies what observes the module nor tells of the
    copy's calls.

    Args:
        call: takes what torch gives a hook; None does nothing.
    """

    def __init__(self, call: Callable[..., None] | None = None) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> None:
        """Call the hook's function, and return None, so that the module's output is unchanged."""
        if self._call is not None:
            self._call(*arguments)

    def __reduce__(self) -> tuple[type[ModuleHook], tuple[()]]:
        """Return a hook without a function, for copies and pickles of the hooked module."""
        return ModuleHook, ()
