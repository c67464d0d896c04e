"""Read the states of the generators from which a run draws its random numbers."""

from __future__ import annotations

import torch
from torch import Tensor


def random_state() -> Tensor:
    """Return a copy of the states of torch's own generators, of the CPU and of the present GPU."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states.append(torch.cuda.get_rng_state())
    return torch.cat(states)
