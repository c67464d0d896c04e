"""What a recorded train step costs on one rank as the number of tensors grows.

    python ci/bench/tensors.py [--tensors 10000] [--steps 5] [--profile FILE]

A stack of small linear layers is trained by AdamW, plainly and then recorded, in one process. The
tensors are small, so that all of the difference is what each of them costs, not its bytes. Of each
run are said: seconds of processor of a step, the median over all but the first.
"""

from __future__ import annotations

import argparse
import cProfile
import statistics
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn

from pytest_precision import Recorder

WIDTH = 16

MOST = 3.0
"""Largest ratio of a recorded step to a plain one."""


def made(tensors: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a stack of layers with so many weights and biases, and its optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(tensors // 2)))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    """Train, and return the seconds of processor that each step has taken."""
    seconds = []
    for step in range(steps):
        started = time.process_time()
        generator = torch.Generator().manual_seed(step)
        loss = model(torch.randn(8, WIDTH, generator=generator)).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.process_time() - started)
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tensors", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--profile", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    plain = statistics.median(trained(*made(args.tensors), args.steps)[1:])
    model, optimizer = made(args.tensors)
    profile = cProfile.Profile()
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        with Recorder(model, optimizer, out=Path(folder) / "out", steps=args.steps + 1) as recorder:
            with profile if args.profile else nullcontext():
                recorded = trained(model, optimizer, args.steps)
            recorder.stop()
        whole = time.process_time() - started
    if args.profile:
        profile.dump_stats(args.profile)
    ratio = statistics.median(recorded[1:]) / plain
    print(
        f"{args.tensors} tensors: plain {plain:.3f} s, recorded "
        f"{', '.join(f'{second:.3f}' for second in recorded)} s, {ratio:.1f} times; "
        f"all of {args.steps} steps {whole:.1f} s{' MISSED' * (ratio > MOST)}"
    )
    return int(ratio > MOST)


if __name__ == "__main__":
    sys.exit(main())
