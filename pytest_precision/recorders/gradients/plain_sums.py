"""Store recomputed gradients on disk, so that reference and candidate share them.

The loop gives the same to whoever starts from the same weights. Both sides do so at the first step,
and further on where they differ in nothing but in what they show.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from pytest_precision.recorders.gradients.plain import Gradients, Sums

MOST_KEPT = 1 << 22
"""Elements of a run that are kept, 32 MiB on disk: more would displace other references."""


class PlainSums:
    """A folder of recomputed gradients, one file per step, shared by reference and candidate.

    Args:
        folder: where those of this run are kept.
        known: digest of what a step starts from to the file with its sums, of the other side's run;
            None if this run is the first one, and keeps its own.

    Attributes:
        kept: digest to the name of the file, of this run.
    """

    def __init__(self, folder: Path, known: Mapping[str, str] | None) -> None:
        self._folder, self._known = folder, known
        self.kept: dict[str, str] = {}
        self._elements = 0

    def find(self, start: str) -> Sums | None:
        """Return the stored gradients of the step with this digest of inputs, or None."""
        if self._known is None or start not in self._known:
            return None
        try:
            found = torch.load(self._known[start])
        except (OSError, RuntimeError):  # gone or damaged: the step is computed
            return None
        shares: list[Gradients] = [{} for _ in range(found["size"])]
        sizes = [torch.Size(shape).numel() for *_, shape in found["held"]]
        parts = torch.split(found["values"], sizes)
        for (position, name, shape), values in zip(found["held"], parts, strict=True):
            shares[position][name] = values.view(shape)
        return Sums.of_shares(found["losses"], shares)

    def keep(self, start: str, sums: Sums) -> None:
        """Write a step's recomputed gradients to disk, for the other of candidate and reference."""
        elements = sum(own.numel() for share in sums.shares for own in share.values())
        if self._known is not None or self._elements + elements > MOST_KEPT:
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
            "held": [(position, name, tuple(own.shape)) for position, name, own in every],
            # As one tensor, since each takes time by itself.
            "values": torch.cat([torch.empty(0).double(), *(own.flatten() for *_, own in every)]),
        }
        try:
            torch.save(data, file)
        except (OSError, RuntimeError):  # the disk is full: the other side computes the step
            file.unlink(missing_ok=True)
            return
        self._elements += elements
        self.kept[start] = file.name
