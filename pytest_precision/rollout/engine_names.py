"""Find the trainer's weights that one tensor of an engine is made of."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_precision.errors import expect_one_of, expected_but_got
from pytest_precision.recipes import inference_names

EXPERT = "{expert}"
"""What stands for the number of an expert in a pattern: the experts are stacked in this order."""

NameMap = (
    str | Mapping[str, "str | Sequence[str]"] | Callable[[str], "str | Sequence[str] | None"] | None
)
"""What a test may give: a recipe's name; the engine's name to the trainer's; or a function."""


class Made(NamedTuple):
    """How a tensor of the engine is put together.

    Attributes:
        groups: for each expert, or once, the trainer's names that follow each other in dimension 0.
        stacked: whether the groups are stacked in a new dimension 0.
    """

    groups: tuple[tuple[str, ...], ...]
    stacked: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Return all names of the trainer's."""
        return tuple(name for group in self.groups for name in group)

    def put_together(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the engine's tensor of the trainer's."""
        rows = [
            tensors[group[0]] if len(group) == 1 else torch.cat([tensors[name] for name in group])
            for group in self.groups
        ]
        return torch.stack(rows) if self.stacked else rows[0]


def made_of(names: NameMap, engine_name: str, trainer_names: Collection[str]) -> Made | None:
    """Return what a tensor of the engine is made of; None if it has no weight of the trainer's.

    Args:
        names: the test's map.
        engine_name: of the tensor.
        trainer_names: of all that the trainer holds.
    """
    parts = names(engine_name) if callable(names) else _by_pattern(_mapping(names), engine_name)
    if parts is None:
        parts = engine_name
    group = (parts,) if isinstance(parts, str) else tuple(parts)
    if any(EXPERT in part for part in group):
        return _stacked(group, trainer_names)
    return Made((group,)) if all(part in trainer_names for part in group) else None


def engine_names(names: NameMap, trainer_names: Collection[str]) -> list[str]:
    """Return the names of what an engine may make of a trainer's weights, fused or as they are.

    Raises:
        ValueError: a function is given, of which nobody can say what it would be asked.
    """
    if callable(names):
        advice = "give a recipe's name, or a dict"
        raise ValueError(expected_but_got("names that can be recorded", "a function", advice))
    fused: dict[str, None] = {}
    for pattern, parts in _mapping(names).items():
        first = parts if isinstance(parts, str) else parts[0]
        first = re.escape(first.replace(EXPERT, "0")).replace(r"\*", "(.*)")
        matches = (re.fullmatch(first, name) for name in trainer_names)
        fused |= {_filled(pattern, match.groups()): None for match in matches if match}
    return [*dict.fromkeys([*fused, *trainer_names])]


def _mapping(names: str | Mapping[str, str | Sequence[str]] | None) -> inference_names.FusedNames:
    if isinstance(names, str):
        expect_one_of("names", names, inference_names.FUSED_NAMES)
        return inference_names.FUSED_NAMES[names]
    return names or {}


def _by_pattern(names: Mapping[str, str | Sequence[str]], name: str) -> str | list[str] | None:
    for pattern, parts in names.items():
        match = re.fullmatch(re.escape(pattern).replace(r"\*", "(.*)"), name)
        if match is not None:
            texts = [parts] if isinstance(parts, str) else [*parts]
            filled = [_filled(text, match.groups()) for text in texts]
            return filled[0] if isinstance(parts, str) else filled
    return None


def _filled(text: str, stars: Sequence[str]) -> str:
    pieces = text.split("*")
    return "".join(
        piece + (stars[number] if number < len(stars) and number < len(pieces) - 1 else "")
        for number, piece in enumerate(pieces)
    )


def _stacked(group: tuple[str, ...], trainer_names: Collection[str]) -> Made | None:
    groups: list[tuple[str, ...]] = []
    while True:
        number = str(len(groups))
        names = tuple(part.replace(EXPERT, number) for part in group)
        if not all(name in trainer_names for name in names):
            return Made(tuple(groups), stacked=True) if groups else None
        groups.append(names)
