"""A loop that trains one layer with a clip of the test's, and looks at no norm by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

SMALL = 1e-3
"""A limit that clips in each step."""

Clip = Callable[[list[nn.Parameter]], object]


def loop(cell: Any, record: Any, clip: Clip) -> None:
    """Train with a clip."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record():
        while True:
            model(torch.ones(2, 3)).square().mean().backward()
            clip([*model.parameters()])
            optimizer.step()
            optimizer.zero_grad()
