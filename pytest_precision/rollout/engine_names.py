"""Find the trainer's weights that one tensor of an engine is made of."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_precision.errors import expect_one_of
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
    if isinstance(names, str):
        recipes = inference_names.FUSED_NAMES
        expect_one_of("names", names, recipes)
        names = recipes[names]
    parts: str | Sequence[str] | None
    if isinstance(names, Mapping):
        parts = _by_pattern(names, engine_name)
    else:
        parts = None if names is None else names(engine_name)
    if parts is None:
        parts = engine_name
    group = (parts,) if isinstance(parts, str) else tuple(parts)
    if any(EXPERT in part for part in group):
        return _stacked(group, trainer_names)
    return Made((group,)) if all(part in trainer_names for part in group) else None


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
