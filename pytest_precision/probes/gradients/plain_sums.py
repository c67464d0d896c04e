"""Store recomputed gradients on disk, so that reference and candidate share them.

The loop gives the same to whoever starts from the same weights. Both sides do so at the first step,
and further on where they differ in nothing but in what they show.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from pytest_precision.probes.gradients.plain import Gradients, Sums

MOST_KEPT = 1 << 22
"""Elements of a run that are kept, 32 MiB on disk: more would displace other references."""


class PlainSums:
    """A folder of recomputed gradients, one file per step, shared by reference and candidate.

    Args:
        folder: where those of this run are kept.
        other_files: digest of what a step starts from to the file with its sums, of the other
            side's run; None if this run is the first one, and keeps its own.

    Attributes:
        files: digest to the name of the file, of this run.
    """

    def __init__(self, folder: Path, other_files: Mapping[str, str] | None) -> None:
        self._folder, self._other_files = folder, other_files
        self.files: dict[str, str] = {}
        self._elements = 0

    def find(self, start: str) -> Sums | None:
        """Return the stored gradients of the step with this digest of inputs, or None."""
        if self._other_files is None or start not in self._other_files:
            return None
        try:
            stored = torch.load(self._other_files[start])
        except (OSError, RuntimeError):  # gone or damaged: the step is computed
            return None
        shares: list[Gradients] = [{} for _ in range(stored["size"])]
        sizes = [torch.Size(shape).numel() for *_, shape in stored["held"]]
        parts = torch.split(stored["values"], sizes)
        for (position, name, shape), values in zip(stored["held"], parts, strict=True):
            shares[position][name] = values.view(shape)
        return Sums.of_shares(stored["losses"], shares)

    def keep(self, start: str, sums: Sums) -> None:
        """Write a step's recomputed gradients to disk, for the other of candidate and reference."""
        elements = sum(gradient.numel() for share in sums.shares for gradient in share.values())
        if self._other_files is not None or self._elements + elements > MOST_KEPT:
            return
        every = [
            (position, name, gradient)
            for position, share in enumerate(sums.shares)
            for name, gradient in share.items()
        ]
        file = self._folder / f"plain-{start}.pt"
        data = {
            "size": len(sums.shares),
            "losses": sums.losses,
            "held": [(position, name, tuple(gradient.shape)) for position, name, gradient in every],
            # As one tensor, since each takes time by itself.
            "values": torch.cat(
                [torch.empty(0).double(), *(gradient.flatten() for *_, gradient in every)]
            ),
        }
        try:
            torch.save(data, file)
        except (OSError, RuntimeError):  # the disk is full: the other side computes the step
            file.unlink(missing_ok=True)
            return
        self._elements += elements
        self.files[start] = file.name
