"""What recording a sharded loop costs, in plain steps; and a digest, in reads of memory.

    python ci/bench/sharded.py [--ranks 2 4 8] [--width 512] [--depth 6] [--batch 64] [--rounds 3]

Plain and recorded launches of one script of FSDP2 on gloo take turns, so that a machine that slows
down slows both. A step's time is the median of a launch without its first steps; a ratio is the
median of those of all rounds.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from pytest_precision.trace.digests import digest
from pytest_precision.trace.lin8 import additive_digest

STEPS = 6

SCRIPT = """
import statistics, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

out, (width, depth, batch, steps) = sys.argv[1], map(int, sys.argv[2:])
dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
layers = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.LayerNorm(width))]
model = nn.Sequential(*layers)
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
data, times = torch.randn(batch, width), []
try:
    for _ in range(steps + 1):
        dist.barrier()
        start = time.perf_counter(), time.process_time()
        model(data).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        times.append((time.perf_counter() - start[0], time.process_time() - start[1]))
finally:
    if dist.get_rank() == 0:
        print(*(statistics.median(column) for column in zip(*times[2:])), file=open(out, "w"))
"""


def launch(folder: Path, ranks: int, sizes: list[str], *record: str) -> tuple[float, float]:
    """Run the script on ranks; return wall time and processor time of a step of rank 0."""
    times = folder / "times"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    script = [str(folder / "script.py"), str(times), *sizes, str(STEPS)]
    command += [f"--nproc-per-node={ranks}", *record, *script]
    subprocess.run(command, check=True, capture_output=True, cwd=folder)
    wall, processor = map(float, times.read_text().split())
    return wall, processor


def recorded_ratios(ranks: int, sizes: list[str], rounds: int) -> tuple[float, float]:
    """Return how many plain steps a recorded one takes, in wall and in processor time."""
    ratios = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "script.py").write_text(SCRIPT)
            plain = launch(folder, ranks, sizes)
            record = ["-m", "pytest_precision", "record", "--out", "recording"]
            recorded = launch(folder, ranks, sizes, *record, "--steps", str(STEPS), "--")
            ratios.append([ours / theirs for ours, theirs in zip(recorded, plain, strict=True)])
    wall, processor = (statistics.median(column) for column in zip(*ratios, strict=True))
    return wall, processor


def seconds(call: Callable[[], object], rounds: int = 9) -> float:
    """Return the least processor time of a call."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    for name, default in (("width", 512), ("depth", 6), ("batch", 64), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tensor = torch.randn(16 << 20)
    read = seconds(lambda: tensor.view(torch.int64).sum())
    for name, function in (("xxh3-128", digest), ("lin8-128", additive_digest)):
        ratio = seconds(lambda function=function: function(tensor)) / read
        print(f"{name} of 64 MB: {ratio:.2f} reads", flush=True)
    sizes = [str(options.width), str(options.depth), str(options.batch)]
    for ranks in options.ranks:
        wall, processor = recorded_ratios(ranks, sizes, options.rounds)
        print(f"FSDP2, {ranks} ranks: {wall:.1f} plain steps, {processor:.1f} of processor")


if __name__ == "__main__":
    main()
