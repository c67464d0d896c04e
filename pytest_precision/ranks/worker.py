"""The rank's end: join the process group, then run one job after the other until told to stop."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from pytest_precision.ranks import lifeline, output
from pytest_precision.ranks.messages import (
    Done,
    FromRank,
    Raised,
    Ready,
    Run,
    Stop,
    ToRank,
    Unavailable,
)
from pytest_precision.ranks.parcel import Parcel


@dataclass(frozen=True, slots=True)
class Membership:
    """A rank's place in its group.

    Attributes:
        rank: from 0.
        world_size: number of ranks.
        device: `cpu` (gloo) or `cuda` (nccl, and gloo for what lies on the CPU).
        folder: of the group, where the ranks meet and leave their files.
        environment: the controller's, when the group was opened.
        start_seconds: until all ranks must have met.
        collective_seconds: until a collective gives up.
    """

    rank: int
    world_size: int
    device: str
    folder: Path
    environment: Mapping[str, str]
    start_seconds: float
    collective_seconds: float

    @property
    def log(self) -> Path:
        """Its stdout and stderr."""
        return self.folder / f"rank{self.rank}.log"

    @property
    def stacks(self) -> Path:
        """Its stacks, after a SIGUSR1."""
        return self.folder / f"rank{self.rank}.stacks"

    @property
    def result(self) -> Path:
        """Its last result, where that is large."""
        return self.folder / f"rank{self.rank}.result"


def main(membership: Membership, connection: Connection) -> NoReturn:
    """The whole life of a rank's process, which leaves by `os._exit`.

    After a failure the process leaves at once, without a barrier and without taking the process
    group down: its end is what frees the peers that wait for it in a collective.
    """
    lifeline.tie(membership.folder)
    output.redirect(membership.log, membership.stacks)
    status = 0
    try:
        connection.send(_join(membership))
        while not isinstance(message := _next(connection, membership), Stop):
            output.restart(membership.log)
            connection.send(_answer(message, membership.result))
    except BaseException as error:
        when = time.monotonic()
        status = 1
        connection.send(Raised.of(error, when))
    finally:
        output.flush()
        lifeline.release()
        os._exit(status)


def _next(connection: Connection, membership: Membership) -> ToRank:
    try:
        message: ToRank = connection.recv()
    except EOFError:  # nobody will ask again
        lifeline.follow(membership.folder)
    return message


def _join(membership: Membership) -> FromRank:
    rank, world_size = membership.rank, membership.world_size
    os.environ.clear()
    os.environ.update(membership.environment)
    os.environ.update(
        # What launchers set, and frameworks read; the controller may itself run under a launcher.
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_WORLD_SIZE=str(world_size),
        OMP_NUM_THREADS="1",
    )
    # Deterministic matrix products on a GPU need a workspace of fixed size.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # All ranks are on this machine: the host's name may resolve to an address that nobody answers.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

    import torch
    import torch.distributed as dist

    device = None
    if membership.device == "cuda":
        available = torch.cuda.device_count()
        if available < world_size:
            return Unavailable(available)
        # An index into CUDA_VISIBLE_DEVICES, which stays as the caller set it.
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    store = dist.FileStore(str(membership.folder / "store"), world_size)  # type: ignore[attr-defined]
    # The deadline of a collective may be short; it must not run while a peer still imports torch.
    store.set(f"here{rank}", "")
    everybody = [f"here{peer}" for peer in range(world_size)]
    store.wait(everybody, timedelta(seconds=membership.start_seconds))
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if membership.device == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=membership.collective_seconds),
        device_id=device,
    )
    return Ready()


def _answer(message: Run, file: Path) -> FromRank:
    from pytest_precision.ranks import pristine

    job = message.job.unpack()
    pristine.reset()
    result = job.run()
    try:
        pickled = pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # pickling runs the value's own code
        raise TypeError(
            f"expected a result that pickles, since it travels to the caller, but got result="
            f"{result!r} ({type(result).__name__}) of {job.call.name}: {error}; return plain data"
        ) from error
    return Done(Parcel.of(pickled, file))
