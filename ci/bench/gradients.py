"""What it costs to compute gradients once more: `python ci/bench/gradients.py [RANKS]`.

Processor time of checks that have it over those of checks that turn it off, and their time by the
clock, per workload and precision. All take turns in one session with the same ranks, and references
that are kept. A figure is the ratio of the least times of all rounds, since what else the machine
does can only add to a time. The candidate gives

- the bits of the reference in the same cell, where no gradient is computed once more for it;
- other bits in the same cell, in all gradients and new weights: it starts from the weights of the
  reference, whose plain gradients of the first step are its own, too;
- other bits in another cell, where all are computed once more.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable
from typing import Any

import psutil
import torch

from pytest_precision import Cell, Engine, Workload, layouts, norm, unchecked, workloads
from pytest_precision.check.parity import Parity
from pytest_precision.options import Settings
from pytest_precision.plugin.resources import Resources

SEQUENCE = "train4-eval-train2-save-load-train2"

SETTINGS = Settings(device="cpu", lines="off", timeout=300)

OF_REFERENCE = "of_reference"
"""Name of an axis on which nothing depends."""

OFF = {"grad": unchecked(reason="to see what it costs")}
PRECISIONS = ("fp32", "bf16", "mxfp8", "nvfp4")
WORKLOADS: dict[str, Callable[..., Workload]] = {
    "mlp": workloads.mlp,
    "gpt": workloads.gpt,
    "moe": workloads.moe,
}


NEAR = {
    "default": unchecked(reason="a turned bit may change a code, and a code changes much"),
    "loss": norm(rel=0.05),
}
"""Bounds within which the other bits are."""


class OtherBits(Engine):
    """Turns the lowest bit of one element of each gradient, and of each weight."""

    def forward_backward(self, step: int) -> None:
        """Compute the gradients, and turn their bits."""
        super().forward_backward(step)
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                turn_bit(parameter.grad)

    def optimizer_step(self) -> None:
        """Update, and turn the bits of the weights."""
        super().optimizer_step()
        for parameter in self.model.parameters():
            turn_bit(parameter.data)


def turn_bit(tensor: torch.Tensor) -> None:
    """Turn the lowest bit of the first element of a tensor of fp32 or bf16."""
    integer = torch.int32 if tensor.dtype is torch.float32 else torch.int16
    tensor.view(-1)[:1].view(integer).bitwise_xor_(1)


def twin(workload: Workload, cell: Cell) -> Engine:
    """The same layout under another name."""
    return layouts.adamw(workload, cell)


def other_bits(workload: Workload, cell: Cell) -> Engine:
    """The same layout with other bits in all gradients, and so in all weights."""
    engine = layouts.adamw(workload, cell)
    engine.__class__ = OtherBits
    return engine


def processor_time() -> float:
    """Return the seconds that this process and all that it has started have computed."""
    seconds = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            seconds += times.user + times.system
    return time.process_time() + seconds


def taken(
    resources: Resources, cell: Cell, workload: Any, candidate: Any = twin, **terms: Any
) -> tuple[float, float]:
    """Return the processor time of one check with its candidate's recording, and by the clock."""
    parity = Parity("bench", cell, SETTINGS, resources.ranks(SETTINGS), resources.traces)
    used = processor_time()
    began = time.perf_counter()
    parity.check(candidate, layouts.adamw, workload=workload, **terms)
    return processor_time() - used, time.perf_counter() - began


def ratios(cell: Cell, workload: Any, rounds: int) -> list[tuple[float, float]]:
    """Return how many times as long a check takes with it, by the least times of all rounds.

    In processor time and by the clock: with the same bits, with other bits, and in another cell.
    """
    resources = Resources()
    other = cell.replace(**{OF_REFERENCE: 1})
    differs = {"candidate": other_bits, "criterion": NEAR}
    kinds: list[dict[str, Any]] = [{}, differs, {"reference_cell": other} | differs]
    figures: list[tuple[float, float]] = []
    try:
        for kind in kinds:
            off = {"oracle": OFF}
            taken(resources, cell, workload, **kind)  # starts the ranks, records the reference
            both: list[list[tuple[float, float]]] = [[], []]
            for _ in range(rounds):
                for each, terms in zip(both, (off, {}), strict=True):
                    each.append(taken(resources, cell, workload, **kind, **terms))
            without, with_it = ([min(times) for times in zip(*each, strict=True)] for each in both)
            figures.append((with_it[0] / without[0], with_it[1] / without[1]))
    finally:
        resources.close()
    return figures


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ranks", type=int, nargs="?", default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--workload", nargs="+", choices=[*WORKLOADS], default=[*WORKLOADS])
    args = parser.parse_args()
    print("                 same bits         other bits       another cell")
    print("              processor  clock  processor  clock  processor  clock")
    for name in args.workload:
        for precision in args.precision:
            primary = "fp32" if precision == "fp32" else "bf16"
            axes = ((OF_REFERENCE, 0),)
            cell = Cell(precision, primary, False, SEQUENCE, args.ranks, axes)
            pairs = ratios(cell, WORKLOADS[name], args.rounds)
            figures = "".join(f"{used:11.2f} {clock:6.2f}" for used, clock in pairs)
            print(f"{name:4} {precision:6}{figures}", flush=True)


if __name__ == "__main__":
    main()
