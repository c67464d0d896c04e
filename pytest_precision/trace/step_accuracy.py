"""Step accuracy: gradients and updates of one train step, each beside the exact one, on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from pytest_precision.trace.files import OWN_FILES, write_whole
from pytest_precision.trace.safetensors_file import read_safetensors, write_safetensors


class BesideExact(NamedTuple):
    """A logical tensor, whole, as a side has it and as fp64 gives it from the same state."""

    got: Tensor
    exact: Tensor


OfTensors = Mapping[str, BesideExact]
"""Name of a logical tensor to what a side has of it."""


@dataclass(frozen=True)
class StepAccuracy:
    """What a side has made in its first train step.

    Attributes:
        tensors: `gradients` and `updates` to those of each logical tensor.
        silent: likewise to why there are none.
    """

    tensors: Mapping[str, OfTensors] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write it."""
        write_safetensors(
            folder / _TENSORS,
            (
                (f"{kind} {which} {name}", tensor.contiguous())
                for kind, own in self.tensors.items()
                for name, both in own.items()
                for which, tensor in both._asdict().items()
            ),
        )
        write_whole(folder / _SILENT, dict(self.silent))

    @classmethod
    def read(cls, folder: Path) -> StepAccuracy:
        """Read what was written into a folder.

        Raises:
            OSError, ValueError: nothing was, or it is damaged.
        """
        found: dict[str, dict[str, dict[str, Tensor]]] = {}
        for key, tensor in read_safetensors(folder / _TENSORS).items():
            kind, which, name = key.split(" ", 2)
            found.setdefault(kind, {}).setdefault(name, {})[which] = tensor
        tensors = {
            kind: {name: BesideExact(**both) for name, both in own.items()}
            for kind, own in found.items()
        }
        return cls(tensors, OWN_FILES.data(folder / _SILENT))


_TENSORS, _SILENT = "first_step.safetensors", "first_step.json"
