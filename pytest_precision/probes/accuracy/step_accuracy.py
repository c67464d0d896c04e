"""Store on disk the gradients and updates of a first train step, paired with fp64 ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pytest_precision.errors import expected_but_got
from pytest_precision.trace.files import OWN_FILES, write_whole


class BesideExact(NamedTuple):
    """A tensor that a run computed, and the same tensor computed in fp64."""

    got: Tensor
    exact: Tensor


OfTensors = Mapping[str, BesideExact]
"""Name of a logical tensor to what a side has of it."""


@dataclass(frozen=True)
class StepAccuracy:
    """A run's first gradients and updates, each paired with the same computed in fp64.

    Attributes:
        tensors: `gradients` and `updates` to those of each logical tensor.
        silent: `gradients` or `updates` to the reason why there are none.
    """

    tensors: Mapping[str, OfTensors] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write a step's gradients and updates, and the fp64 ones, as safetensors into a folder."""
        names = [(kind, name) for kind, pairs in self.tensors.items() for name in pairs]
        both = [self.tensors[kind][name] for kind, name in names]
        stored_tensors = {
            f"{which}{number}": tensor.clone(memory_format=torch.contiguous_format)
            for number, pair in enumerate(both)
            for which, tensor in pair._asdict().items()
        }
        save_file(stored_tensors, folder / _TENSORS)
        write_whole(folder / _INDEX, {"names": names, "silent": dict(self.silent)})

    @classmethod
    def read(cls, folder: Path) -> StepAccuracy:
        """Read a step's gradients and updates, and the fp64 ones, from a folder.

        Raises:
            OSError, ValueError: nothing was, or it is damaged.
        """
        index = OWN_FILES.data(folder / _INDEX)
        try:
            stored = load_file(folder / _TENSORS)
        except SafetensorError as error:
            raise ValueError(expected_but_got("the tensors of a first step", error)) from error
        tensors: dict[str, dict[str, BesideExact]] = {}
        for number, (kind, name) in enumerate(index["names"]):
            both = (stored[f"{which}{number}"] for which in BesideExact._fields)
            tensors.setdefault(kind, {})[name] = BesideExact(*both)
        return cls(tensors, index["silent"])


_TENSORS = "first_step.safetensors"
_INDEX = "first_step.json"
