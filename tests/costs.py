"""What each test costs: processor seconds of its whole tree of processes, and what it started.

Both are properties of the test in the JUnit file, which `ci/bench/durations.py` reads.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

LONG = 10.0
"""Processor seconds beyond which a test has to say why, in the mark `long`."""

EVERY = 0.1
"""Seconds between two looks at the processes. What ends sooner, such as most calls of git, may be
missed, and its seconds are those of the process that started it. A look takes up to half a
millisecond of the process whose tests are measured."""

TICKS = os.sysconf("SC_CLK_TCK")
"""Of Linux's clock of processor time in a second."""


def content(file: str) -> bytes:
    """Return the first 64 KiB of a file of `/proc`; nothing of a process that has ended.

    It takes calls of the system alone. After a session in this process, pytester empties
    `sys.modules` for a moment, in which whatever imports anything would make it a second time.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


class Times(NamedTuple):
    """What Linux says of a process.

    Attributes:
        started: when, in ticks since the machine was started.
        alone: processor seconds of the process itself.
        ended: those of its children that have ended, and of theirs.
    """

    started: int
    alone: float
    ended: float

    @classmethod
    def of(cls, process: int) -> Times | None:
        """Return the times of a process, None of one that has ended."""
        # A process may have any bytes as its name, which stands in brackets.
        fields = content(f"/proc/{process}/stat").rpartition(b")")[2].split()
        if not fields:
            return None
        user, system, user_ended, system_ended = map(int, fields[11:15])
        return cls(int(fields[19]), (user + system) / TICKS, (user_ended + system_ended) / TICKS)


def below(process: int) -> Iterator[tuple[int, int]]:
    """Yield each process below one, after the one that has started it.

    Only they are looked at: to find them among all processes of a machine takes milliseconds.
    """
    try:
        threads = os.listdir(f"/proc/{process}/task")
    except OSError:
        return
    for thread in threads:
        for child in map(int, content(f"/proc/{process}/task/{thread}/children").split()):
            yield process, child
            yield from below(child)


def command_of(process: int) -> list[str]:
    """Return the command line of a process; nothing of one that has ended."""
    line = content(f"/proc/{process}/cmdline").decode(errors="replace")
    return line.rstrip("\0").split("\0") if line else []


def kind_of(command: list[str], forked: bool) -> str:
    """Return what a process is by its command line, and by whether it only forked."""
    words = [Path(command[0]).name, *command[1:]]
    text = " ".join(words)
    if "forkserver" in text or "resource_tracker" in text:
        return "rank" if forked else "fork server"
    if words[0].startswith("git"):
        return "git"
    if "torchrun" in text or "torch.distributed.run" in text:
        return "torchrun"
    if "pytest_precision" in text or "pytest-precision" in text:
        return "command"
    if "pytest" in text:
        return "pytest"
    if words[0].startswith("python"):
        return "python"
    return "other"


@dataclass
class Seen:
    """A process when it was last seen.

    Attributes:
        kind: what it is.
        forked: whether it has its parent's command line, and may yet become another program.
        seconds: of processor that it took itself.
    """

    kind: str
    forked: bool
    seconds: float


class Costs:
    """Adds up what the processes below this one take, test by test."""

    def __init__(self) -> None:
        """Begin to look at the processes."""
        self.seen: dict[tuple[int, int], Seen] = {}
        self.lock = threading.Lock()
        self.ended = threading.Event()
        self.before = self.taken = 0.0
        self.known: dict[tuple[int, int], float] = {}
        self.watcher = threading.Thread(target=self.watch, daemon=True)

    def watch(self) -> None:
        """Look at the processes until the session ends."""
        while not self.ended.wait(EVERY):
            self.look()

    def look(self) -> float:
        """Note what processes there are, and return the processor seconds of the whole tree."""
        with self.lock:
            here = Times.of(os.getpid())
            total = here.alone + here.ended if here else 0.0
            for parent, process in below(os.getpid()):
                times = Times.of(process)
                if times is None:
                    continue  # it has just ended, and its parent has its seconds
                identity = process, times.started
                found = self.seen.get(identity) or Seen("", True, 0.0)
                if found.forked and (command := command_of(process)):
                    found.forked = command_of(parent) == command
                    found.kind = kind_of(command, found.forked)
                if found.kind:  # else it had ended before anybody saw its command line
                    found.seconds = times.alone
                    self.seen[identity] = found
                total += times.alone + times.ended
            return total

    def pytest_sessionstart(self) -> None:
        """Start looking; what imports took is of no test."""
        self.before = self.look()
        self.watcher.start()

    def pytest_sessionfinish(self) -> None:
        """Look no more."""
        self.ended.set()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, Any, Any]:
        """Add to a test's last report what it took and started."""
        if call.when == "teardown":
            item.user_properties += self.since()
            if self.taken > LONG and item.get_closest_marker("long") is None:
                item.user_properties.append(("unexplained", f"{self.taken:.1f}"))
        return (yield)

    def since(self) -> list[tuple[str, object]]:
        """Return what was taken and started since this was last asked."""
        total = self.look()
        with self.lock:
            started: Counter[str] = Counter()
            seconds: Counter[str] = Counter()
            for identity, process in self.seen.items():
                started[process.kind] += identity not in self.known
                seconds[process.kind] += process.seconds - self.known.get(identity, 0.0)
            self.known = {identity: process.seconds for identity, process in self.seen.items()}
            self.taken = total - self.before
            self.before = total
        properties: list[tuple[str, object]] = [("processor", f"{self.taken:.3f}")]
        for kind in sorted(started):
            if started[kind] or seconds[kind] > 0.005:
                properties.append((f"started {kind}", f"{started[kind]} {seconds[kind]:.3f}"))
        return properties
