"""What recording a script costs: `python ci/bench/loops.py [--millions N] [--rounds N]`.

The same steps of the same loop on one rank: bare, recorded as digests, and recorded as values.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from measure import interleave, ratio
from torch import nn

from pytest_precision.loops.runs import record_script
from pytest_precision.matrix.cell import Cell
from pytest_precision.trace.moment import EVERYTHING, Window

WIDTH = 1024
STEPS = 3


def train(cell: Cell, record: Any, layers: int, tokens: int) -> None:
    """Train for some steps; the loop of a script."""
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(layers)]
    model = nn.Sequential(*blocks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with record():
        for _ in range(STEPS):
            model(torch.randn(tokens, WIDTH)).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


@contextmanager
def unrecorded() -> Iterator[None]:
    """Do nothing."""
    yield


def recorded(script: Any, window: Window | None) -> None:
    """Record into a folder that is removed."""
    with tempfile.TemporaryDirectory() as folder:
        record_script(script, Cell(sequence=f"train{STEPS}"), Path(folder), window)


def main() -> None:
    """Print both ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millions", type=int, default=100, help="parameters, in millions")
    parser.add_argument("--tokens", type=int, default=1024, help="rows of a batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shared", action="store_true", help="count rounds beside other processes")
    given = parser.parse_args()
    layers = max(1, given.millions * 10**6 // (WIDTH * (WIDTH + 1)))
    script = partial(train, layers=layers, tokens=given.tokens)
    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(str(Path(folder) / "store"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        functions = {
            "bare": partial(script, Cell(), unrecorded),
            "digests": partial(recorded, script, None),
            "values": partial(recorded, script, EVERYTHING),
        }
        seconds = interleave(functions, given.rounds, alone=not given.shared)
        dist.destroy_process_group()
    print(f"{layers} layers, {given.tokens} tokens, {STEPS} steps; time over that of the bare loop")
    for name in ("digests", "values"):
        print(f"{name:8} {ratio(seconds, name, 'bare'):5.2f}")


if __name__ == "__main__":
    main()
