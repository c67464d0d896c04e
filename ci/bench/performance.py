"""The tables of docs/performance.md: what recording and comparing cost as a run grows.

    python ci/bench/performance.py [--tensors 100 1000 10000] [--ranks 1 8 64]

Each row is printed as it is measured. Seconds are those of the processor, since other work on a
machine moves the wall time of short runs most; each ratio is of two runs in one process. The last
table has what people use instead on the same state.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.testing import assert_close
from torch.utils._debug_mode import DebugMode

from pytest_precision import Recorder
from pytest_precision.trace.digests import digest
from pytest_precision.trace.lin8 import additive_digest

BENCH = Path(__file__).parent

ELEMENTS = (1 << 20, 1 << 22, 1 << 24)
"""Elements of all weights of a model of eight layers."""

LAYERS = 8

STEPS = 4


def said(program: str, *arguments: object) -> str:
    """Return what another bench says."""
    command = [sys.executable, str(BENCH / program), *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.strip()


def made(elements: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a model of that many elements, and its optimizer."""
    torch.manual_seed(0)
    width = int((elements / LAYERS) ** 0.5)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(LAYERS)))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Train a few steps, and return the median of the seconds of processor of one."""
    seconds = []
    for step in range(STEPS):
        started = time.process_time()
        generator = torch.Generator().manual_seed(step)
        width = next(model.parameters()).shape[1]
        model(torch.randn(64, width, generator=generator)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.process_time() - started)
    return statistics.median(seconds[1:])


def recorded(elements: int) -> tuple[float, float]:
    """Return the seconds of a plain step and of a recorded one, in turns."""
    plain = trained(*made(elements))
    model, optimizer = made(elements)
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(model, optimizer, out=Path(folder) / "out", steps=STEPS + 1)
        recorder.start()
        seconds = trained(model, optimizer)
        recorder.stop()
    return plain, seconds


def cost(act: Callable[[], object]) -> float:
    """Return the least of three times, in seconds of processor."""
    seconds = []
    for _ in range(3):
        started = time.process_time()
        act()
        seconds.append(time.process_time() - started)
    return min(seconds)


def sees(same: Callable[[torch.Tensor, torch.Tensor], bool]) -> list[str]:
    """Return which of four defects a way to compare tells from the right tensor."""
    right = torch.randn(4096, generator=torch.Generator().manual_seed(1))
    swapped = right.clone()
    swapped[[0, 1]] = right[[1, 0]]
    bit = right.clone()
    bit.view(torch.int32)[7] ^= 1
    twice = right.clone()
    twice[[2, 3]] = -right[[2, 3]]
    stale = right.bfloat16().float()
    defects = {"order": swapped, "one bit": bit, "two signs": twice, "rounded to bf16": stale}
    return [name for name, wrong in defects.items() if not same(right, wrong)]


def close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    try:
        assert_close(ours, theirs)
    except AssertionError:
        return False
    return True


def equal_by(hashed: Callable[[torch.Tensor], object]) -> Callable[..., bool]:
    return lambda ours, theirs: hashed(ours) == hashed(theirs)


def sha256(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.numpy().tobytes()).hexdigest()


def summed(tensor: torch.Tensor) -> int:
    """Return what `torch.hash_tensor` does, by which some compare ranks."""
    return int(torch.hash_tensor(tensor).view(torch.int64))


def normed(tensor: torch.Tensor) -> object:
    """Return what torch's `DebugMode` logs of a tensor unless told otherwise: the sum of sizes."""
    with DebugMode.log_tensor_hashes(), DebugMode() as mode:
        tensor.clone()
    return [operator.log for operator in mode.operators][-1]


def others() -> None:
    """Print what other ways to compare a state cost, to one read of it, and what they see."""
    model, optimizer = made(1 << 22)
    trained(model, optimizer)
    state = [tensor.detach() for tensor in model.parameters()]
    state += [s[key] for s in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]
    theirs = copy.deepcopy(state)
    read = cost(lambda: [tensor.view(torch.int64).sum() for tensor in state])
    ways: dict[str, tuple[Callable[[], object], Callable[..., bool]]] = {
        "`assert_close` of state dicts": (lambda: [*map(close, state, theirs)], close),
        "sha256 of the bytes": (lambda: [*map(sha256, state)], equal_by(sha256)),
        "`torch.hash_tensor` (XOR)": (lambda: [*map(summed, state)], equal_by(summed)),
        "`DebugMode.log_tensor_hashes`": (lambda: [*map(normed, state)], equal_by(normed)),
        "xxh3-128": (lambda: [*map(digest, state)], equal_by(digest)),
        "lin8-128": (lambda: [*map(additive_digest, state)], equal_by(additive_digest)),
    }
    for name, (act, same) in ways.items():
        print(f"| {name} | {cost(act) / read:.1f} | {', '.join(sees(same))} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tensors", type=int, nargs="*", default=[100, 1000, 10_000])
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 8, 64])
    parser.add_argument("--steps", type=int, nargs="*", default=[5, 50])
    args = parser.parse_args()
    torch.set_num_threads(1)
    for tensors in args.tensors:
        print(said("tensors.py", "--tensors", tensors, "--steps", 3), flush=True)
        print(said("growth.py", "--tensors", tensors), flush=True)
    for steps in args.steps:
        print(said("growth.py", "--tensors", 100, "--steps", steps), flush=True)
    for ranks in args.ranks:
        print(said("growth.py", "--tensors", 20, "--ranks", ranks), flush=True)
    for elements in ELEMENTS:
        plain, seconds = recorded(elements)
        words = f"plain {plain:.3f} s, recorded {seconds:.3f} s, {seconds / plain:.1f} times"
        print(f"{elements / 1e6:.0f} M elements: {words}", flush=True)
    others()
    return 0


if __name__ == "__main__":
    sys.exit(main())
