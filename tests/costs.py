"""What each test costs: processor seconds of its whole tree of processes, and what it started.

Both are properties of the test in the JUnit file, which `ci/bench/durations.py` reads.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from _pytest.pytester import SysModulesSnapshot

LONG = 10.0
"""Processor seconds beyond which a test has to say why, in the mark `long`."""

EVERY = 0.05
"""Seconds between two looks at the processes. What ends sooner, such as most calls of git, may be
missed, and its seconds are those of the process that started it."""


def kind_of(command: list[str], forked: bool) -> str:
    """Return what a process is by its command line, and by whether it only forked."""
    words = [Path(command[0]).name, *command[1:]] if command else [""]
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
    """A process: its kind, and the processor seconds of itself alone when it was last seen."""

    kind: str
    seconds: float


class Costs:
    """Adds up what the processes below this one take, test by test."""

    def __init__(self) -> None:
        """Begin to look at the processes."""
        self.me = psutil.Process()
        self.seen: dict[tuple[int, float], Seen] = {}
        self.lock = threading.Lock()
        self.ended = threading.Event()
        self.before = self.taken = 0.0
        self.known: dict[tuple[int, float], float] = {}
        self.watcher = threading.Thread(target=self.watch, daemon=True)

    def watch(self) -> None:
        """Look at the processes until the session ends."""
        while not self.ended.wait(EVERY):
            self.look()

    def look(self) -> float:
        """Note what processes there are, and return the processor seconds of the whole tree."""
        with self.lock:
            times = self.me.cpu_times()
            total = times.user + times.system + times.children_user + times.children_system
            for process in self.me.children(recursive=True):
                try:
                    with process.oneshot():
                        times = process.cpu_times()
                        identity = (process.pid, process.create_time())
                        known = self.seen.get(identity)
                        if known is None or known.kind == "rank":
                            command = process.cmdline()
                            parent = process.parent()
                            forked = parent is not None and parent.cmdline() == command
                            kind = kind_of(command, forked)
                        else:
                            kind = known.kind
                        self.seen[identity] = Seen(kind, times.user + times.system)
                        total += times.user + times.system
                        total += times.children_user + times.children_system
                except psutil.Error:
                    continue  # it has just ended, and its parent has its seconds
            return total

    def pytest_sessionstart(self) -> None:
        """Start looking; what imports took is of no test.

        After a session in this process, pytester empties `sys.modules` for a moment. A look that
        imports anything then would make a second `_io`, whose exceptions nobody catches.
        """
        restored = SysModulesSnapshot.restore

        def restore(snapshot: SysModulesSnapshot) -> None:
            with self.lock:
                restored(snapshot)

        SysModulesSnapshot.restore = restore  # type: ignore[method-assign]
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
