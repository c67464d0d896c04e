"""RankPool: run a function on N ranks; groups of ranks are started on demand and kept."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from pytest_precision.errors import expect_one_of, expected_but_got, named
from pytest_precision.ranks.code.import_path import ImportPath
from pytest_precision.ranks.code.module_files import ModuleFile
from pytest_precision.ranks.handle import Rank
from pytest_precision.ranks.inline import InlineGroup
from pytest_precision.ranks.job import Job
from pytest_precision.ranks.local import LocalGroup
from pytest_precision.ranks.needs import Needs
from pytest_precision.ranks.process.process import RankProcess
from pytest_precision.ranks.process.worker import Membership

RankGroup: TypeAlias = LocalGroup | InlineGroup
"""N ranks in one process group, which call functions one after the other.

After any exception from `run` the group is unusable: the caller kills it and opens another one."""

MODES = ("reuse", "fresh", "inline")
DEVICES = ("cpu", "cuda")

KEPT = 4
"""Number of idle groups that are kept on any machine; more are kept if there is memory for them. To
make room, the least recently used group is closed."""

RANK_BYTES = {"cpu": 200 << 20, "cuda": 3 << 30}
"""Memory of an idle rank in addition to what it shares with the fork server. On a CPU it is 125 to
175 MiB after a job of a built-in workload; on a GPU this is an estimate."""

INTERPRETER_BYTES = 200 << 20
"""Extra memory of a rank with declared variables, which shares almost none: 190 MiB."""

DEVICE_ROOM = 0.75
"""Share of a GPU's memory that must be free after a job for other groups to stay on it: a context
takes half a GiB, whatever a rank does, and the next job may need nearly all."""

GroupKey = tuple[int, Needs]


class RankPool:
    """Calls functions on groups of ranks; no process starts before the first call.

    Args:
        start: starts one rank: by default on this machine; `hosts.Hosts` starts it in a launch.
        memory: bytes that idle ranks may use; by default a share of the machine's memory.
        preload: modules that are imported once, and of which all ranks are copies.

    Attributes:
        mode: `reuse` keeps one group per world size and `Needs` between jobs, as long as
            `end_check` lets it; `fresh` opens one per job, `inline` has one rank, which is the
            calling process. A script file that runs as torchrun starts it has processes of its own
            in each of them.
        timeout: deadline of a job in seconds, unless `run` gets another. The start of a group has
            its own deadline, which is no shorter.
        device: `cpu` or `cuda`; with enough GPUs there is one per rank, in the order of
            CUDA_VISIBLE_DEVICES.
        ranks_per_device: how many ranks may share a GPU if there are not enough.

    Raises:
        ValueError: an argument has no valid value.
    """

    def __init__(
        self,
        mode: str = "reuse",
        timeout: float = 300.0,
        device: str = "cpu",
        start: Callable[[Membership], Rank] = RankProcess,
        ranks_per_device: int = 1,
        memory: int | None = None,
        preload: tuple[str, ...] = (),
    ) -> None:
        expect_one_of("mode", mode, MODES)
        expect_one_of("device", device, DEVICES)
        _expect_seconds(timeout)
        self.mode = mode
        self.timeout = timeout
        self.device = device
        self.ranks_per_device = ranks_per_device
        self._start = start
        self._preload = preload
        self._room = for_waiting_ranks() if memory is None else memory
        self._groups: OrderedDict[GroupKey, RankGroup] = OrderedDict()
        self._owner = os.getpid()
        self._lock = threading.Lock()
        # The fallback for a caller that does not close; `lifeline` covers a killed process.
        atexit.register(self.close)

    def run(
        self,
        world_size: int,
        function: Callable[..., Any] | ImportPath,
        *args: Any,
        timeout: float | None = None,
        needs: Needs | None = None,
        name: str | None = None,
        modules: set[ModuleFile] | None = None,
        output: dict[int, str] | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """Call `function` once on each of `world_size` ranks.

        Threads that call this at the same time wait for each other.

        Args:
            world_size: number of ranks.
            function: module-level callable; it is sent to the ranks with its arguments, and each
                call starts from the state that `starting_point.reset` describes.
            args: positional arguments of each call.
            timeout: deadline in seconds, in place of the pool's.
            needs: what the job requires of its ranks; by default the caller's current environment,
                in a group that all such jobs share.
            name: name of the function in messages, if not its own.
            modules: the files of the user's modules that the ranks have imported, in this job and
                before it, are added here.
            output: the end of what each rank printed is added here, by rank; it is read only then.
            kwargs: keyword arguments of each call.

        Returns:
            The results in rank order.

        Raises:
            RankError: a rank failed, or the deadline has passed. In inline mode, the function's own
                exception is raised instead.
            RanksSkipped: all ranks skipped. In inline mode, the function's own exception is raised
                instead.
            WorldSizeError: so many ranks cannot run here.
            TypeError: the function has no import path, or an argument does not pickle.
        """
        __tracebackhide__ = True
        if type(world_size) is not int or world_size < 1:
            raise ValueError(expected_but_got("an int from 1", f"world_size={world_size!r}"))
        seconds = self.timeout if timeout is None else timeout
        _expect_seconds(seconds)
        job = Job.of(function, args, kwargs, name)
        key = world_size, needs or Needs()
        with self._lock:
            return self._run(key, job, seconds, set() if modules is None else modules, output)

    def _run(
        self,
        key: GroupKey,
        job: Job,
        seconds: float,
        modules: set[ModuleFile],
        output: dict[int, str] | None,
    ) -> list[Any]:
        __tracebackhide__ = True
        needs = key[1]
        job = replace(
            job,
            collected=() if self.mode == "inline" else needs.collected,
            imports=needs.code,
            may_leave=needs.may_leave,
            warn_only=needs.warn_only,
        )
        group = self._group(key, seconds)
        try:
            results = group.run(job, seconds)
        except BaseException:  # Ctrl-C too: ranks that are still busy cannot be used again
            self._groups.pop(key).kill()
            raise
        modules |= group.modules
        if output is not None:
            output |= group.output
        if self.mode == "fresh" or needs.fresh or needs.launched:
            self._groups.pop(key).close()
        elif group.room < DEVICE_ROOM:
            for other_group_key in [
                other_group_key for other_group_key in self._groups if other_group_key != key
            ]:
                self._groups.pop(other_group_key).close()
        return results

    def end_check(self) -> None:
        """Close the groups that ran code of the user's without a promise of what it depends on.

        Jobs of the next check get new ranks, which import that code as it is then.
        """
        with self._lock:
            for key in [key for key in self._groups if not key[1].outlasts_check]:
                self._groups.pop(key).close()

    def close(self) -> None:
        """End all ranks in bounded time.

        A second call does nothing. A job after it starts new ranks.
        """
        if os.getpid() != self._owner:  # this is a forked child of the caller, which owns no ranks
            return
        while self._groups:
            self._groups.popitem()[1].close()

    def _group(self, key: GroupKey, seconds: float) -> RankGroup:
        group = self._groups.get(key)
        if group is not None:
            if group.serves(seconds):
                self._groups.move_to_end(key)
                return group
            self._groups.pop(key).close()
        while not self._has_room(key):
            self._groups.popitem(last=False)[1].close()
        self._groups[key] = self._open(*key, max(seconds, self.timeout))
        return self._groups[key]

    def _has_room(self, key: GroupKey) -> bool:
        """Return whether memory allows keeping the idle ranks of group `key` besides the others."""
        return len(self._groups) < KEPT or sum(map(self._bytes, [key, *self._groups])) <= self._room

    def _bytes(self, key: GroupKey) -> int:
        world_size, needs = key
        interpreter_bytes = INTERPRETER_BYTES if needs.environment.declared else 0
        return world_size * (RANK_BYTES[self.device] + interpreter_bytes)

    def _open(self, world_size: int, needs: Needs, longest: float) -> RankGroup:
        if self.mode == "inline" and not needs.launched:
            return InlineGroup(world_size, self.device, needs.environment)
        return LocalGroup(
            world_size,
            self.device,
            longest,
            needs.environment,
            self.ranks_per_device,
            self._start,
            self._preload,
            launched=needs.launched,
        )


def _expect_seconds(timeout: float) -> None:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise ValueError(expected_but_got("seconds above 0", named("timeout", timeout)))


MEMORY_SHARE = 0.25
"""Share of the memory that idle ranks may use."""


LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files with the memory limit of a container: control groups of version 2 and 1."""


def for_waiting_ranks(limits: tuple[str, ...] = LIMITS) -> int:
    """Return the memory limit, in bytes, of all idle ranks of this process or xdist worker.

    Args:
        limits: files with the memory limits of the container; missing ones are ignored.
    """
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in limits:
        with contextlib.suppress(OSError, ValueError):  # no such control group, or "max"
            sizes.append(int(Path(file).read_text(encoding="utf-8")))
    return int(min(sizes) * MEMORY_SHARE) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
