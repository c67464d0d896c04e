"""LocalGroup: a group of rank processes, on this machine or as torchrun and srun placed them."""

from __future__ import annotations

import pickle
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from pytest_precision._folders import OwnFolder
from pytest_precision.errors import RankError, RanksSkipped, WorldSizeError
from pytest_precision.ranks import blame, handle, watch
from pytest_precision.ranks.code.module_files import ModuleFile, unchanged
from pytest_precision.ranks.gpus import devices
from pytest_precision.ranks.handle import Rank
from pytest_precision.ranks.job import Job
from pytest_precision.ranks.launch import wire
from pytest_precision.ranks.launch.launch import Master
from pytest_precision.ranks.process import output
from pytest_precision.ranks.process.coverage_of_ranks import measured_here
from pytest_precision.ranks.process.messages import (
    Done,
    Payload,
    Ready,
    RunJob,
    Skipped,
    Stop,
    Unavailable,
)
from pytest_precision.ranks.process.process import RankProcess
from pytest_precision.ranks.process.rendezvous import FileRendezvous, reserved_port
from pytest_precision.ranks.process.worker import Membership
from pytest_precision.ranks.state import leaks
from pytest_precision.ranks.state.environment import Environment

START_SECONDS = 120.0
"""Least time for a group to start: the first group starts the fork server, which imports torch. It
has the time of a job if that is longer, so that a slow machine needs no other option."""
LEAVE_SECONDS = 1.0
"""Time for idle ranks to leave."""
COLLECTIVE_SHARE = 0.9
"""Share of a job's deadline after which a collective times out and says where it was."""
LOOK_SHARE = 0.9
"""Share of that time after which stacks are taken where collectives end the process."""
ABORTING = frozenset({"cuda"})
"""Devices whose collectives end the process when they time out, as NCCL's watchdog does. Gloo's
raise; and a signal wakes what sleeps in native code, so that stacks are not taken without need."""


class LocalGroup:
    """N local rank processes in one process group: gloo on the CPU, nccl and gloo on GPUs.

    Args:
        world_size: number of ranks.
        device: `cpu` or `cuda`.
        timeout: the longest deadline, in seconds, of a job on this group.
        environment: environment of the ranks.
        ranks_per_device: how many ranks may share a GPU if there is not one per rank.
        start: starts a rank; by default on this machine.
        preload: modules that the fork server imports before it starts the ranks.
        launched: whether its ranks run a script file as torchrun starts it, without a process group
            of ours.

    Attributes:
        modules: the files of the user's modules that its ranks have imported so far.
        room: share of the memory of the fullest of its GPUs that was free after its last job.

    Raises:
        WorldSizeError: there are too few GPUs for the ranks.
        RankError: a rank failed to start, or the ranks did not meet in time.
    """

    def __init__(
        self,
        world_size: int,
        device: str,
        timeout: float,
        environment: Environment,
        ranks_per_device: int = 1,
        start: Callable[[Membership], Rank] = RankProcess,
        preload: tuple[str, ...] = (),
        *,
        launched: bool = False,
    ) -> None:
        self._timeout = timeout
        self._collective_seconds = timeout * COLLECTIVE_SHARE
        self._start_seconds = max(START_SECONDS, timeout)
        self._device = device
        self._ranks_per_device = ranks_per_device
        self._home = OwnFolder()
        self._ranks: list[Rank] = []
        self._devices: set[str] = set()
        self._tainted = False
        self._found_by: tuple[str, ...] | None = None
        self._imported = False
        self._reserved = ExitStack()
        self.modules: set[ModuleFile] = set()
        self.room = 1.0
        try:
            # Until its processes have ended, no other gets the port at which they meet.
            port = self._reserved.enter_context(reserved_port()) if launched else 0
            for rank in range(world_size):
                membership = Membership(
                    rank=rank,
                    world_size=world_size,
                    local_rank=rank,
                    local_world_size=world_size,
                    sharing=world_size,
                    device=device,
                    folder=self._home.path,
                    rendezvous=FileRendezvous(self._home.path / "store", world_size),
                    environment=environment,
                    start_seconds=self._start_seconds,
                    collective_seconds=self._collective_seconds,
                    ranks_per_device=ranks_per_device,
                    preload=preload,
                    master=Master(wire.LOOPBACK, port) if launched else None,
                    coverage=measured_here(),
                )
                self._ranks.append(start(membership))
            self._open(world_size)
        except BaseException:
            self.kill()
            raise

    def serves(self, timeout: float) -> bool:
        """Return whether these ranks can run another call as correctly as new ones would.

        What they have imported must be what a new group would import now. A module of the user's
        that a job imported while it ran is not as a new group would find it.
        """
        lasts = timeout <= self._timeout and self._home.present
        untouched = not self._tainted and not self._imported
        same_path = self._found_by in (None, tuple(sys.path))
        current = same_path and unchanged(self.modules)
        return lasts and untouched and current and all(rank.alive for rank in self._ranks)

    def run(self, job: Job, timeout: float) -> list[Any]:
        """Call a function on all ranks; return results in rank order, or raise if a rank failed."""
        __tracebackhide__ = True
        payload = Payload.of(pickle.dumps(job, pickle.HIGHEST_PROTOCOL), self._home.path / "job")
        task = RunJob(payload, secrets.token_hex(8))
        with devices.held(self._devices, timeout):
            started = time.monotonic()
            for rank in self._ranks:
                rank.send(task)
            received, stacks = self._answers(started, timeout)
        answers = [received[rank].message for rank in sorted(received)]
        done = [answer for answer in answers if isinstance(answer, Done)]
        skips = [answer.reason for answer in answers if isinstance(answer, Skipped)]
        if len(skips) == len(self._ranks):
            raise RanksSkipped("; ".join(dict.fromkeys(skips)))
        if len(done) < len(self._ranks):
            overdue = started + self._collective_seconds
            raise self._failure(received, started, timeout, overdue, job.name, stacks)
        blame.require_nonce(task.nonce, [answer.nonce for answer in done], job.name)
        results = [
            self._unpacked_result(rank, answer.result, job) for rank, answer in enumerate(done)
        ]
        self.modules.update(*(answer.modules.unpack() for answer in done))
        self._found_by = job.sys_path
        self._imported = any(answer.imported for answer in done)
        self.room = min(answer.room for answer in done)
        self._tainted = leaks.warn(job.name, [answer.leaks for answer in done])
        return results

    @property
    def output(self) -> dict[int, str]:
        """Return the end of what each rank printed in the last job, by rank, where it did."""
        tails = {rank.number: output.tail(rank.membership.log) for rank in self._ranks}
        return {rank: text for rank, text in tails.items() if text}

    def close(self) -> None:
        """Ask the ranks to end, end by force those that take too long, and remove their folder."""
        # The process id of a rank that has ended may belong to another process by now.
        living_ranks = [rank for rank in self._ranks if rank.alive]
        for rank in living_ranks:
            rank.send(Stop())
        handle.leave(living_ranks, LEAVE_SECONDS)
        self._end(living_ranks)

    def kill(self) -> None:
        """End all ranks by force, busy or not, and remove their folder."""
        self._end(self._ranks)

    def _open(self, world_size: int) -> None:
        started = time.monotonic()
        # The ranks' own deadline expires first, since its error says more.
        deadline = started + self._start_seconds / COLLECTIVE_SHARE
        received_answers = watch.collect(self._ranks, deadline)
        for answer in received_answers.values():
            if isinstance(answer.message, Unavailable):
                limit = f"{self._ranks_per_device} per GPU"
                raise WorldSizeError(world_size, answer.message.available, limit)
            if isinstance(answer.message, Ready):
                self._devices.add(answer.message.device)
        if len(received_answers) < world_size or not all(
            isinstance(h.message, Ready) for h in received_answers.values()
        ):
            overdue = started + self._start_seconds
            doing = "the start of the group"
            raise self._failure(received_answers, started, self._start_seconds, overdue, doing, {})

    def _answers(
        self, started: float, seconds: float
    ) -> tuple[dict[int, watch.Received], Mapping[int, str]]:
        """Return the answers that the ranks sent in time, and on GPUs the late ranks' stacks."""
        if self._device not in ABORTING:
            return watch.collect(self._ranks, started + seconds), {}
        look = self._collective_seconds * LOOK_SHARE
        received_answers = watch.collect(self._ranks, started + min(seconds, look))
        late = [rank for rank in self._ranks if rank.number not in received_answers]
        if not late or seconds <= look or watch.has_failure(received_answers):
            return received_answers, {}
        stacks = watch.stacks(late)
        return received_answers | watch.collect(late, started + seconds), stacks

    def _failure(
        self,
        received: Mapping[int, watch.Received],
        started: float,
        seconds: float,
        overdue: float,
        doing: str,
        early: Mapping[int, str],
    ) -> RankError:
        silent = [rank for rank in self._ranks if rank.number not in received]
        hangs = blame.is_hang(received, overdue)
        stacks = {**early, **watch.stacks(silent)} if hangs else {}
        handle.end(self._ranks)  # their logs are complete now
        received = watch.with_statuses(received, self._ranks)
        return blame.failure_of(
            blame.Evidence(
                world_size=len(self._ranks),
                received=received,
                started=started,
                seconds=seconds,
                overdue=overdue,
                doing=doing,
                stacks=stacks,
                tails=self.output,
            )
        )

    def _unpacked_result(self, rank: int, result: Payload, job: Job) -> Any:
        try:
            return result.unpack()
        except Exception as error:  # unpickling runs the value's own code
            text = (
                f"rank {rank} of {len(self._ranks)} in {job.name} returned a result "
                f"that does not unpickle here: {type(error).__name__}: {error}; return plain data"
            )
            raise RankError(text, rank, "raised", type(error).__qualname__) from error

    def _end(self, ranks: list[Rank]) -> None:
        handle.end(ranks)
        for rank in self._ranks:
            rank.close()
        self._ranks = []
        self._reserved.close()
        self._home.close()
