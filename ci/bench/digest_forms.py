"""What each form of the digest `lin8-128` costs on a device, as a ratio to one read of the bytes.

    python ci/bench/digest_forms.py [--size 512MB] [--rounds 9] [--device cuda]

Half of the bytes are in large tensors, a quarter in shards of columns, a quarter in small tensors.
All forms must agree bit for bit before any is timed. One read is a sum of 64-bit integers. Forms
run in turns in one process; the figures are medians over the rounds. A figure above the target is
marked; on a CPU there is none.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from importlib.util import find_spec

import measure
import numpy as np
import torch

from pytest_precision.engine.observation import Chunk
from pytest_precision.trace.lin8 import flat_bytes
from pytest_precision.trace.lin8_sums import ByteSums, DeviceSums, DigestedPart, HostSums

TARGET = 1.5
"""Largest ratio of a digest to one read, on a GPU with Triton."""

LARGE, COLUMNS, SMALL = (4096, 4096), (4096, 1024), (64, 512)
"""Shapes of a large tensor, of a quarter of its columns, and of a small tensor, in bf16."""


def parts_of(size: int, device: str) -> list[DigestedPart]:
    """Return random parts of so many bytes."""
    shares = {LARGE: size // 2, COLUMNS: size // 4, SMALL: size // 4}
    parts = []
    for shape, share in shares.items():
        nbytes = 2 * shape[0] * shape[1]
        for _ in range(max(1, share // nbytes)):
            content = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, device=device)
            tensor = content.view(torch.bfloat16).view(shape)
            whole = LARGE if shape == COLUMNS else shape
            parts.append(DigestedPart(tensor, whole, Chunk((0, 0), shape)))
    return parts


def forms_of(device: str) -> dict[str, Callable[[int], ByteSums]]:
    """Return the forms that a device has, by name."""
    place = torch.device(device)
    forms: dict[str, Callable[[int], ByteSums]] = {"torch": lambda n: DeviceSums(n, place)}
    if device == "cpu":
        forms["numpy and torch"] = HostSums
    elif find_spec("triton"):
        from pytest_precision.trace.lin8_triton import TritonSums

        forms["Triton"] = lambda n: TritonSums(n, place)
    return forms


def sums(make: Callable[[int], ByteSums], parts: list[DigestedPart]) -> list[list[int]]:
    """Return both sums of each part by one form, as unsigned 64-bit integers."""
    form = make(len(parts))
    for number, part in enumerate(parts):
        form.take(number, flat_bytes(part.tensor), part)
    return form.finished().view(np.uint64).tolist()


def main() -> None:
    """Compare the forms, time them, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=measure.size, default="512MB", help="bytes, such as 512MB")
    parser.add_argument("--rounds", type=int, default=9, help="how often each form runs")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    args = parser.parse_args()
    parts = parts_of(args.size, args.device)
    forms = forms_of(args.device)
    on_host = [part._replace(tensor=part.tensor.cpu()) for part in parts]
    expected = sums(HostSums, on_host)
    for name, make in forms.items():
        if sums(make, parts) != expected:
            raise ValueError(f"expected the sums of the CPU from the form {name} but got others")

    def read() -> None:
        for part in parts:
            part.tensor.view(torch.int64).sum()

    timed: dict[str, Callable[[], object]] = {"read": read}
    timed |= {name: lambda make=make: sums(make, parts) for name, make in forms.items()}
    seconds = measure.interleave(
        {name: measure.finished(run, args.device) for name, run in timed.items()}, args.rounds
    )
    nbytes = sum(part.tensor.nbytes for part in parts)
    print(f"torch {torch.__version__}, {len(parts)} tensors of {nbytes >> 20} MiB on {args.device}")
    print(f"one read: {nbytes / statistics.median(seconds['read']) / 1e9:.1f} GB/s")
    for name in forms:
        ratio = measure.ratio(seconds, name, "read")
        missed = name == "Triton" and ratio > TARGET
        print(f"{name}: {ratio:.2f} reads{f', MISSED {TARGET}' if missed else ''}")


if __name__ == "__main__":
    main()
