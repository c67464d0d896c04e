"""How fast two tensors are compared, beside `torch.equal` and `torch.testing.assert_close`.

    python ci/bench/compare.py [--sizes 64MB,1GB] [--rounds 9]

Every time is a ratio to `torch.equal` of an equal pair of the same size and dtype, measured in the
same rounds. A figure that misses its target is marked.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
from collections.abc import Callable, Iterator

import measure
import torch
from torch import Tensor

from pytest_precision import bitwise, close
from pytest_precision.parity.compare.tensors import compare

MEBIBYTE = 2**20

BASE = "torch.equal of equals"

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

TARGETS = {
    ("fp32", "equal"): 1.0,
    ("bf16", "equal"): 0.3,
    ("fp32", "everything differs"): 3.5,
    ("bf16", "everything differs"): 2.5,
}
"""Largest ratio to the base."""

MEMORY = 16 * MEBIBYTE
"""Largest number of bytes beyond the tensors."""

ROW = "{:>6} {:>5}  {:<19} {:>8} {:>7}  {:<7} {:>11} {:>12} {:>9}  {:<7} {:>15}"


def pairs(dtype: torch.dtype, size: int) -> Iterator[tuple[str, Tensor, Tensor]]:
    """What is compared: a name, a candidate and a reference; each pair is gone after its turn."""
    generator = torch.Generator().manual_seed(1)
    numel = size // dtype.itemsize
    reference = torch.empty(numel, dtype=dtype).normal_(generator=generator)
    candidate = reference.clone()
    yield "equal", candidate, reference
    candidate[numel // 2] += 1
    yield "one element differs", candidate, reference
    candidate.copy_(reference)
    candidate.view({2: torch.int16, 4: torch.int32}[dtype.itemsize]).bitwise_xor_(3)
    yield "everything differs", candidate, reference
    candidate.normal_(generator=generator)
    yield "sign changes", candidate, reference


def assert_close(candidate: Tensor, reference: Tensor) -> None:
    """Today's practice for tensors that must be equal."""
    with contextlib.suppress(AssertionError):
        torch.testing.assert_close(candidate, reference, rtol=0, atol=0)


def functions(candidate: Tensor, reference: Tensor) -> dict[str, Callable[[], object]]:
    """What is measured."""
    return {
        "bitwise": lambda: compare(candidate, reference, bitwise()),
        "close": lambda: compare(candidate, reference, close(rtol=1, atol=1)),
        "torch.equal": lambda: torch.equal(candidate, reference),
        "assert_close": lambda: assert_close(candidate, reference),
    }


def memory(function: str, dtype: str, size: int, threads: int) -> dict[str, int]:
    """Bytes that `function` needs beyond the tensors, by pair: for a fresh process.

    What it keeps for later calls counts every time.
    """
    torch.set_num_threads(threads)
    small = torch.zeros(2, dtype=DTYPES[dtype])
    functions(small, small + 1)[function]()
    extra: dict[str, int] = {}
    kept_bytes = 0
    for name, candidate, reference in pairs(DTYPES[dtype], size):
        before = measure.status("VmRSS") - kept_bytes
        extra[name] = measure.extra_memory(functions(candidate, reference)[function], before)
        kept_bytes = max(0, measure.status("VmRSS") - before)
    return extra


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="64MB,1GB", help="sizes of a tensor")
    parser.add_argument("--rounds", default=9, type=int, help="rounds of each measurement")
    options = parser.parse_args()
    threads = torch.get_num_threads()
    print(f"torch {torch.__version__}, {threads} threads; ratios to {BASE}, memory beyond the pair")
    print(
        ROW.format(
            "size",
            "dtype",
            "pair",
            "bitwise",
            "target",
            "",
            "close(1, 1)",
            "assert_close",
            "extra MB",
            "",
            "assert_close MB",
        )
    )
    for size in options.sizes.split(","):
        for dtype in DTYPES:
            table(dtype, size, options.rounds, threads)


def table(dtype: str, size: str, rounds: int, threads: int) -> None:
    """Print the rows of one dtype and size."""
    extra = {
        function: measure.in_fresh_process(memory, function, dtype, measure.size(size), threads)
        for function in ("bitwise", "assert_close")
    }
    for name, candidate, reference in pairs(DTYPES[dtype], measure.size(size)):
        measured = functions(candidate, reference)
        measured[BASE] = functools.partial(torch.equal, reference.clone(), reference)
        seconds = measure.interleave(measured, rounds, {"assert_close": 1})
        bitwise_ratio = measure.ratio(seconds, "bitwise", BASE)
        target = TARGETS.get((dtype, name))
        print(
            ROW.format(
                size,
                dtype,
                name,
                f"{bitwise_ratio:.2f}",
                "" if target is None else f"<= {target}",
                "MISSED" if target is not None and bitwise_ratio > target else "",
                f"{measure.ratio(seconds, 'close', BASE):.2f}",
                f"{measure.ratio(seconds, 'assert_close', BASE):.1f}",
                f"{extra['bitwise'][name] / MEBIBYTE:.1f}",
                "MISSED" if extra["bitwise"][name] > MEMORY else "",
                f"{extra['assert_close'][name] / MEBIBYTE:.0f}",
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
