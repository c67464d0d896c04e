"""Run a rank's process: join the process group, then run jobs until told to stop."""

from __future__ import annotations

import os
import pickle
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pytest_precision.errors import Cause, RankError, expected_but_got
from pytest_precision.ranks.code.bytecode import distrust_bytecode
from pytest_precision.ranks.code.module_files import imported_files
from pytest_precision.ranks.code.relocation import Relocation, relocation_of_process, settle
from pytest_precision.ranks.gpus import devices
from pytest_precision.ranks.launch.launch import Master, variables_of_torchrun
from pytest_precision.ranks.process import coverage_of_ranks, lifeline, output, preloaded
from pytest_precision.ranks.process.command_process import begin_launched, run_launched
from pytest_precision.ranks.process.messages import (
    Done,
    FromRank,
    Payload,
    Ready,
    RunJob,
    Stop,
    ToRank,
    Unavailable,
    last_words,
)
from pytest_precision.ranks.process.rendezvous import FileRendezvous, StoreRendezvous
from pytest_precision.ranks.state.environment import Environment

if TYPE_CHECKING:
    from pytest_precision.ranks.job import Job
    from pytest_precision.ranks.state.before_job import Outcome


@dataclass(frozen=True, slots=True)
class Membership:
    """A rank's place in its group, with the paths of its files.

    Attributes:
        rank: number of the rank, from 0.
        world_size: number of ranks.
        local_rank: number among the ranks of its group on this machine.
        local_world_size: number of ranks of its group on this machine.
        sharing: how many of these choose from the same visible devices.
        device: `cpu` (gloo) or `cuda` (nccl, and gloo for tensors on the CPU).
        folder: folder of the group, for the files of the ranks.
        rendezvous: rendezvous of the ranks.
        environment: environment of the group.
        start_seconds: time within which all ranks must meet, in seconds.
        collective_seconds: timeout of a collective, in seconds.
        ranks_per_device: how many ranks may share a GPU.
        preload: modules that its fork server has imported, unless variables are declared.
        node: number of its machine among those of its group.
        nodes: number of these machines.
        master: where the processes of a command meet, which makes its own process group; None for
            ranks that are in one of ours.
        relocation: where it finds what the controller names, if not where the controller does.
        coverage: configuration of the coverage.py that measures the session; empty for none.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    sharing: int
    device: str
    folder: Path
    rendezvous: FileRendezvous | StoreRendezvous
    environment: Environment
    start_seconds: float
    collective_seconds: float
    ranks_per_device: int
    preload: tuple[str, ...] = ()
    node: int = 0
    nodes: int = 1
    master: Master | None = None
    relocation: Relocation | None = None
    coverage: str = ""

    @property
    def variables(self) -> dict[str, str]:
        """All environment variables of the rank."""
        place = (self.rank, self.world_size), (self.local_rank, self.local_world_size)
        if self.master is None:
            return self.environment.of_rank(*place[0], *place[1])
        launch_variables = variables_of_torchrun(*place, (self.node, self.nodes), self.master)
        return self.environment.of_command(launch_variables)

    @property
    def needs_interpreter(self) -> bool:
        """Whether it is started as a new interpreter, and not forked from the fork server.

        The server has imported torch, which has read its variables then: too early for declared
        ones. And what a command finds imported must be neither its own nor chosen for layouts.
        """
        return bool(self.environment.declared) or (self.master is not None and bool(self.preload))

    @property
    def log(self) -> Path:
        """The file of the rank's stdout and stderr."""
        return self.folder / f"rank{self.rank}.log"

    @property
    def stacks(self) -> Path:
        """The file to which the rank writes its Python stacks after a SIGUSR1."""
        return self.folder / f"rank{self.rank}.stacks"

    @property
    def result(self) -> Path:
        """The file of the rank's last result, if that is too large to send."""
        return self.folder / f"rank{self.rank}.result"

    @property
    def modules(self) -> Path:
        """The file that lists the modules it has imported, if they are too many to send."""
        return self.folder / f"rank{self.rank}.modules"

    def not_started(self, cause: Cause, why: object) -> RankError:
        """Return the error for a rank of this membership that did not start."""
        who = f"rank {self.rank} of {self.world_size} in the start of the group"
        return RankError(f"{who} {cause}: {why}", self.rank, cause)


def run_rank(membership: Membership, connection: Connection) -> NoReturn:
    """Run a rank's process: join the group, run function calls until told to stop, end by
    `os._exit`.

    After a failure or a skip the process ends at once, without a barrier and without destroying the
    process group: its end frees the peers that wait for it in a collective of gloo.
    """
    status = 0
    try:
        if membership.relocation is not None:
            settle(membership.relocation)
        distrust_bytecode()
        lifeline.tie(membership.folder)
        output.redirect(membership.log, membership.stacks)
        # The code of another commit is not what the session measures.
        save_coverage = coverage_of_ranks.measure(
            "" if membership.relocation else membership.coverage
        )
        sys.argv = [""]  # pytest's arguments are nothing to the modules that a job imports
        join_message = (
            _join(membership) if membership.master is None else begin_launched(membership)
        )
        connection.send(join_message)
        while not isinstance(message := _next(connection, membership), Stop):
            output.restart(membership.log)
            answer = _answer(message, membership)
            save_coverage()
            connection.send(answer)
    except BaseException as error:
        when = time.monotonic()
        status = 1
        connection.send(last_words(error, when))
    finally:
        output.flush()
        lifeline.end_children()
        os._exit(status)


def _next(connection: Connection, membership: Membership) -> ToRank:
    try:
        message: ToRank = connection.recv()
    except EOFError:  # the controller is gone
        lifeline.end_with_controller(membership.folder)
    return message


def _join(membership: Membership) -> FromRank:
    rank, world_size = membership.rank, membership.world_size
    preloaded.join_preloaded(membership.variables)

    # Only here, since the controller imports this module and does without torch.
    import torch.distributed as dist

    from pytest_precision.ranks.gpus import own_device

    device, name, shared = None, "", False
    if membership.device == "cuda":
        choice = own_device.choose_device(
            membership.local_rank, membership.sharing, membership.ranks_per_device
        )
        if isinstance(choice, int):
            return Unavailable(choice)
        device, name, shared = (
            own_device.take_device(choice),
            own_device.device_uuid(),
            choice.shared,
        )
    store = membership.rendezvous.store(membership.start_seconds)
    # The timeout of a collective may be short; it must not start while a peer imports torch.
    store.set(f"here{rank}", "")
    everybody = [f"here{peer}" for peer in range(world_size)]
    store.wait(everybody)
    with _loopback_explained():
        dist.init_process_group(
            devices.backend(membership.device, shared),
            store=store,
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=membership.collective_seconds),
            device_id=None if shared else device,
        )
    return Ready(name)


@contextmanager
def _loopback_explained() -> Iterator[None]:
    """Raise an error with advice if the block fails on a machine without a loopback interface."""
    try:
        yield
    except RuntimeError as error:
        try:
            with socket.socket(type=socket.SOCK_DGRAM) as probe:
                probe.connect(("127.0.0.1", 1))  # sends nothing, but needs a route
        except OSError:
            raise RuntimeError(
                expected_but_got(
                    "the network interface lo to be up, through which the ranks of a machine talk,",
                    "none in this network namespace",
                    "run `ip link set lo up` in it, or set GLOO_SOCKET_IFNAME to another interface",
                )
            ) from error
        raise


def _answer(message: RunJob, membership: Membership) -> FromRank:
    from pytest_precision.ranks.state import accelerator, process_groups

    if membership.master is None:
        # Not after a job: a peer may still wait in a collective of its own.
        process_groups.close_unused()
    job = message.job.unpack()
    done = _run(job, membership)
    try:
        pickled = pickle.dumps(done.result, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # pickling runs the value's own code
        raise TypeError(
            expected_but_got(
                "a result that pickles, since it travels to the caller,",
                f"result={done.result!r} ({type(done.result).__name__}) of {job.name}: {error}",
                "return plain data",
            )
        ) from error
    result = Payload.of(pickled, membership.result)
    modules = Payload.of(pickle.dumps(imported_files().news()), membership.modules)
    room = accelerator.free_memory()
    return Done(result, message.nonce, done.leaks, done.imported, modules, room)


def _run(job: Job, membership: Membership) -> Outcome:
    """Run a function call; raise if it used the user's checkout instead of the rank's commit."""
    from pytest_precision.ranks.state import before_job

    moves = relocation_of_process()
    try:
        if membership.master is None:
            sys.argv = [""]
            run = before_job.before_jobs_of_process().run
            outcome = run(job, membership.environment.threads)
        else:
            outcome = before_job.Outcome(run_launched(job), (), imported=False)
    except ImportError as error:
        if moves is not None:
            moves.expect_built(error, job.sys_path)
        raise
    if moves is not None:
        moves.expect_moved()
    return outcome
