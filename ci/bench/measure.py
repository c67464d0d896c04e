"""What the benchmarks share: ratios measured side by side, and peak memory.

Machines differ and other jobs come and go, so a time says little. What is compared runs in turns in
one process, and the figure is the median over the rounds of the ratio to the base of that round. A
round in which other processes used the cores is taken again.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

R = TypeVar("R")

BUSY = 0.15
"""Cores that other processes may use in a round that counts."""

RETAKES = 10
"""How often each round may be taken again, before it counts all the same."""

UNITS = {"GB": 2**30, "MB": 2**20, "KB": 2**10}


def interleave(
    functions: Mapping[str, Callable[[], object]],
    rounds: int,
    fewer: Mapping[str, int] | None = None,
    *,
    alone: bool = True,
    after: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Seconds of each function, one figure a round.

    Args:
        functions: what to measure by name; run in turns, forwards and backwards.
        rounds: how often; one more round before them is not counted.
        fewer: rounds of those functions that are too slow for all of them.
        alone: whether a round in which other processes used the cores is taken again; not where
            other processes are what is measured.
        after: is called after each function, off the clock.
    """
    limits = {name: (fewer or {}).get(name, rounds) for name in functions}
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    _round(functions, after)
    retakes = RETAKES * rounds
    for turn in range(rounds):
        names = [name for name in functions if turn < limits[name]]
        ordered = {name: functions[name] for name in (names if turn % 2 else names[::-1])}
        taken, others = _round(ordered, after)
        while alone and others > BUSY and retakes:
            retakes -= 1
            taken, others = _round(ordered, after)
        for name, figure in taken.items():
            seconds[name].append(figure)
    return seconds


def finished(function: Callable[[], object], device: str) -> Callable[[], object]:
    """The same function, which returns when the device has done what it was asked for."""
    if device == "cpu":
        return function

    import torch  # not above: a fresh process has imported nothing

    def run() -> None:
        function()
        torch.cuda.synchronize()

    return run


def ratio(seconds: Mapping[str, list[float]], name: str, base: str) -> float:
    """The median over the rounds of the time of `name` over that of `base`."""
    pairs = zip(seconds[name], seconds[base], strict=False)
    return statistics.median(duration / base_duration for duration, base_duration in pairs)


def extra_memory(function: Callable[[], object], resident: int | None = None) -> int:
    """Bytes by which the process grows at most while `function` runs.

    Args:
        function: what to run.
        resident: bytes from which to count; None is what is resident right before.
    """
    before = status("VmRSS") if resident is None else resident
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM to VmRSS
    function()
    return max(0, status("VmHWM") - before)


def status(field: str) -> int:
    """A field of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def in_fresh_process(function: Callable[..., R], *args: Any) -> R:
    """What a module-level function returns in a process that has done nothing before."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, args)


def size(text: str) -> int:
    """Bytes of a size such as `64MB`, in powers of 1024.

    Raises:
        ValueError: for anything else.
    """
    number = text[:-2]
    unit = text[-2:].upper()
    if unit not in UNITS or not number.isdecimal():
        raise ValueError(f"expected a number and one of {', '.join(UNITS)} but got size={text!r}")
    return int(number) * UNITS[unit]


def _round(
    functions: Mapping[str, Callable[[], object]], after: Callable[[], object]
) -> tuple[dict[str, float], float]:
    """Seconds of each function, and how many cores others used meanwhile."""
    seconds: dict[str, float] = {}
    begin = time.perf_counter()
    others = _seconds_of_others()
    for name, function in functions.items():
        start = time.perf_counter()
        function()
        seconds[name] = time.perf_counter() - start
        after()
    return seconds, (_seconds_of_others() - others) / (time.perf_counter() - begin)


def _seconds_of_others() -> float:
    """Processor time that was not idle and not this process's, of all cores since the start."""
    fields = Path("/proc/stat").read_text().split(maxsplit=9)[1:9]
    user, nice, system, _, _, irq, soft_irq, steal = map(int, fields)
    busy = user + nice + system + irq + soft_irq + steal
    return busy / os.sysconf("SC_CLK_TCK") - time.process_time()
