"""What it costs to watch a loop, in plain steps: replicas compared after each step, and replay.

    python ci/bench/watching.py [--ranks 2] [--tokens 64 512] [--rounds 5] [--every 1]

DDP on gloo of 10 million parameters with AdamW. Plain, watched and replayed steps take turns in one
launch, so that a machine that slows down slows all of them. A step's time is the median of a turn
without its first steps, on the clock and of the processor; a ratio is the median of those of all
rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from contextlib import nullcontext
from operator import truediv
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing import start_processes

from pytest_precision import Recorder
from pytest_precision.ranks.process.rendezvous import reserved_port

WIDTH, DEPTH, STEPS, SETTLING = 1024, 10, 4, 2


def turn(
    called: nn.Module, optimizer: torch.optim.Optimizer, tokens: int, watch: Any
) -> tuple[float, float]:
    """Return the median times of a step while the loop is watched: wall and processor."""
    times = []
    with Recorder(called, optimizer, **watch) if watch else nullcontext():
        for _ in range(SETTLING + STEPS):
            data = torch.randn(tokens, WIDTH)
            dist.barrier()
            start = time.perf_counter(), time.process_time()
            called(data).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            dist.barrier()
            times.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    wall, processor = map(statistics.median, zip(*times[SETTLING:], strict=True))
    return wall, processor


def medians(times: list[tuple[float, ...]]) -> list[float]:
    """Return the median of each column."""
    return [statistics.median(column) for column in zip(*times, strict=True)]


def measure(rank: int, port: int, args: argparse.Namespace) -> None:
    """Print the ratios of one launch, on its first rank."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=args.ranks)
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    model = nn.Sequential(
        *(part for _ in range(DEPTH) for part in (nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)))
    )
    called = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(called.parameters())
    for tokens in args.tokens:
        ratios: dict[str, list[tuple[float, ...]]] = {"watch": [], "replay": []}
        plain = []
        for _ in range(args.rounds):
            plain.append(turn(called, optimizer, tokens, {}))
            for name, watch in (("watch", {"watch": args.every}), ("replay", {"replay": True})):
                times = turn(called, optimizer, tokens, watch)
                ratios[name].append(tuple(map(truediv, times, plain[-1])))
        if rank == 0:
            step = " and ".join(f"{median:.3f}" for median in medians(plain))
            words = "; ".join(
                f"{name} " + " and ".join(f"{median:.2f}" for median in medians(of_turns))
                for name, of_turns in ratios.items()
            )
            print(f"{args.ranks} ranks, {tokens} tokens each: step {step} s; {words}")
    dist.destroy_process_group()


def main() -> None:
    """Measure with each number of tokens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--every", type=int, default=1)
    args = parser.parse_args()
    with reserved_port() as port:
        start_processes(measure, (port, args), args.ranks, start_method="fork")


if __name__ == "__main__":
    main()
