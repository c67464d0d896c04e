"""Dynamic loss scaling, which prevents small fp16 gradients from becoming zero."""

from __future__ import annotations

from dataclasses import asdict, dataclass

GROWTH_INTERVAL = 3
"""Steps without an overflow until the scale doubles: a run of four steps sees it double once."""


@dataclass
class LossScale:
    """The dynamic loss scale of an fp16 run, updated like that of torch's `GradScaler`.

    Attributes:
        scale: a power of two, so that multiplying and dividing by it rounds nothing.
        good_steps: steps without an overflow since the scale last changed.
    """

    scale: float = 2.0**12
    good_steps: int = 0

    def update(self, *, overflowed: bool) -> None:
        """Halve the scale after an overflow; double it after `GROWTH_INTERVAL` good steps."""
        self.good_steps = 0 if overflowed else self.good_steps + 1
        if overflowed:
            self.scale /= 2
        elif self.good_steps == GROWTH_INTERVAL:
            self.scale = self.scale * 2
            self.good_steps = 0

    def state_dict(self) -> dict[str, float]:
        """Return the loss scale and its count of steps without overflow, for a checkpoint."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore the scale and its count of steps without overflow from a checkpoint."""
        self.scale = state["scale"]
        self.good_steps = int(state["good_steps"])
