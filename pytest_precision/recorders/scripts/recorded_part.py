"""The tensors and steps that `--only` and `--every` select in a big run.

The state of a large model cannot be read in every step. Losses, norms, rates, modes and generators
are looked at always: they are small, and depend on everything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import product

from pytest_precision.engine.observation import Observation
from pytest_precision.errors import RecordingError, expected_but_got
from pytest_precision.matrix.tensor_key import in_module

SHOWN_NAMES = 5
"""Names of tensors in a message."""


class NothingRecordedError(RecordingError):
    """Raised when a script ran, but made no step or has no tensor that was asked for."""


class RecordedPart:
    """The tensors and steps that `--only` and `--every` select for a recording.

    Args:
        only: patterns of names; none for all tensors.
        every: tensors are looked at in the first step and in each such step after it.
        last: number of the last step, in which they are looked at, too.
    """

    def __init__(self, only: Iterable[str] = (), every: int = 1, last: int = 0) -> None:
        self._only = tuple(only)
        self._every = every
        self._last = last
        self._names: dict[str, None] = {}
        self._kinds: set[str] = set()
        self._spellings: dict[str, list[str]] = defaultdict(list)

    def spell(self, paths: Iterable[tuple[str, str]]) -> None:
        """Let patterns name tensors as `named_parameters` of the loop's models does, too.

        Args:
            paths: of modules, without wrappers and with them.
        """
        for path, spelling in paths:
            self._spellings[path].append(spelling)

    def of(
        self, step: int, names: Iterable[str], observations: Iterator[Observation]
    ) -> Iterator[Observation]:
        """Yield a tensor's observations if its step and name are selected; else read nothing.

        Args:
            step: number of the step that runs.
            names: of the logical tensors in it. In the first step, they may be
                placeholders of `LoopNames`, which have a zero in them.
            observations: of the tensor.
        """
        looks = (step - 1) % self._every == 0 or step == self._last
        if not self._only:
            return observations if looks else iter(())
        return self._wanted_observations(names, observations) if looks else iter(())

    def _wanted_observations(
        self, names: Iterable[str], observations: Iterator[Observation]
    ) -> Iterator[Observation]:
        if any("\0" in name or self._wants(name) for name in names):
            for observation in observations:
                self._kinds.add(observation.kind)
                yield observation

    def belongs(self, observation: Observation) -> bool:
        """Return whether to record a tensor: its name is selected, or its kind always is."""
        always = not self._only or observation.kind not in self._kinds
        return always or self._wants(observation.name)

    def unshown(self) -> dict[str, str]:
        """Return (tensors, reason) for what `--only` and `--every` exclude from a recording."""
        excluded = {}
        if self._only:
            patterns = " or ".join(self._only)
            excluded[f"each tensor but {patterns}"] = (
                "record --only; errors there show only in the losses"
            )
        if self._every > 1:
            steps = f"1, {1 + self._every}, {1 + 2 * self._every} … and the last"
            excluded[f"tensors of other steps than {steps}"] = (
                f"record --every {self._every}; errors there show in the losses, or at "
                "the next of these steps if they last"
            )
        return excluded

    def expect_matches(self) -> None:
        """Raise if a pattern of `--only` has matched no tensor's name.

        Raises:
            NothingRecordedError: with names that there are.
        """
        for pattern in self._only:
            if any(self._matches(name, pattern) for name in self._names):
                continue
            names = ", ".join([*self._names][:SHOWN_NAMES])
            raise NothingRecordedError(
                expected_but_got(
                    "--only to match the name of a tensor",
                    f"{pattern!r}",
                    f"there are {names} and others" if names else "no tensor has a name",
                )
            )

    def _wants(self, name: str) -> bool:
        self._names.setdefault(name)
        return any(self._matches(name, pattern) for pattern in self._only)

    def _matches(self, name: str, pattern: str) -> bool:
        path, leaf = in_module(name)
        spelled = [f"{spelling}.{leaf}" for spelling in self._spellings.get(path, ())]
        patterns = pattern, f"{pattern} after microbatch*"
        return any(fnmatchcase(*pair) for pair in product([name, *spelled], patterns))
