"""What it costs to watch a loop, in plain steps: replicas compared after each step, and replay.

    python ci/bench/watching.py [--ranks 2] [--tokens 64 512] [--rounds 5] [--every 1]

DDP on gloo of 10 million parameters with AdamW. Plain, watched and replayed steps take turns in one
launch, so that a machine that slows down slows all of them. The first steps of a turn are left out.
A ratio is that of the medians of all steps, and of the least ones, which is what it costs where
nothing else reads memory; each on the clock and of the processor.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterable
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


WATCHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "watch": {"watch": 1},
    "replay": {"replay": True},
}


def turn(
    called: nn.Module, optimizer: torch.optim.Optimizer, tokens: int, watch: dict[str, Any]
) -> list[tuple[float, float]]:
    """Return the times of steps while the loop is watched: on the clock and of the processor."""
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
    return times[SETTLING:]


def of_steps(
    reduced: Callable[[Iterable[float]], float], times: list[tuple[float, float]]
) -> list[float]:
    """Return one number of all steps, on the clock and of the processor."""
    return [reduced(column) for column in zip(*times, strict=True)]


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
    watches = WATCHES | {"watch": {"watch": args.every}}
    for tokens in args.tokens:
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in watches}
        for _ in range(args.rounds):
            for name, watch in watches.items():
                times[name] += turn(called, optimizer, tokens, watch)
        if rank == 0:
            words = []
            for reduced, name in ((statistics.median, "median"), (min, "least")):
                plain, *others = (of_steps(reduced, times[kind]) for kind in watches)
                ratios = (map(truediv, numbers, plain) for numbers in others)
                watch, replay = (" and ".join(f"{ratio:.2f}" for ratio in both) for both in ratios)
                step = " and ".join(f"{seconds:.3f}" for seconds in plain)
                words.append(f"{name} step {step} s, watch {watch}, replay {replay}")
            print(f"{args.ranks} ranks, {tokens} tokens each: {'; '.join(words)}", flush=True)
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
