"""A host: a process of a launch that starts one rank of each group, as the controller asks.

The host itself runs no job, since a launcher ends everything when one of its processes dies. On
each line it passes on what the controller and a rank say to each other, signals the rank, and
tells of its end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path

from pytest_precision.launch import SERVED, Launch
from pytest_precision.ranks import wire
from pytest_precision.ranks.environment import Environment
from pytest_precision.ranks.messages import Raised, Run, Stop
from pytest_precision.ranks.process import KILL_SECONDS, RankProcess
from pytest_precision.ranks.remote import Ended, Signal, Start
from pytest_precision.ranks.roll import MEET_SECONDS, Address, roll_of
from pytest_precision.ranks.server import ensure_running


@dataclass(frozen=True, slots=True)
class Hello:
    """To a host, its first call: the controller is there. The connection lasts as long as it does.

    Attributes:
        token: file that the controller has written into its temporary folder.
    """

    token: Path


@dataclass(frozen=True, slots=True)
class Goodbye:
    """To a host: the session is over, and the controller is about to leave.

    Attributes:
        status: that it leaves with.
    """

    status: int


@dataclass(frozen=True, slots=True)
class Welcome:
    """From a host, its answer.

    Attributes:
        token: what it read from the file, None where it found none.
        clock: its monotonic clock.
    """

    token: bytes | None
    clock: float


def serve(launch: Launch) -> int:
    """Serves the controller until that one is gone.

    Returns:
        the exit status to leave with: 0, but the controller's on another node, where torchrun
        would otherwise wait for the success of all nodes.

    Raises:
        ConnectionError: no controller has come within `MEET_SECONDS`.
    """
    # Ctrl-C reaches all processes of a launch, and only the controller acts on it; the others end
    # with it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    ensure_running()  # while the processes meet, the server of this host's ranks imports torch
    os.environ[SERVED] = launch.name
    with wire.listen(wire.own_address(launch.address, launch.port)) as server:
        host, port = server.getsockname()[:2]
        key = roll_of(launch).join(Address.here(launch, host, port))
        control = _controller(server, key)
        lines: list[threading.Thread] = []
        status = 1
        while True:
            if control in wait([server, control]):
                try:
                    goodbye: Goodbye = control.recv()
                except (EOFError, OSError):
                    break
                status = goodbye.status
            else:
                line = wire.accept(server, key)
                if line is not None and (attending := _open(line)) is not None:
                    lines.append(attending)
    # With the controller, all lines are closed: each ends its rank.
    deadline = time.monotonic() + KILL_SECONDS
    for thread in lines:
        thread.join(max(0.0, deadline - time.monotonic()))
    return status if launch.node else 0


def _controller(server: socket.socket, key: bytes) -> Connection:
    deadline = time.monotonic() + MEET_SECONDS
    while wait([server], max(0.0, deadline - time.monotonic())):
        caller = wire.accept(server, key)
        if caller is not None:
            hello: Hello = caller.recv()
            try:
                token = hello.token.read_bytes()
            except OSError:
                token = None
            caller.send(Welcome(token, time.monotonic()))
            return caller
    raise ConnectionError(f"expected the controller to call within {MEET_SECONDS:g} s; got nothing")


def _open(line: Connection) -> threading.Thread | None:
    """Starts the rank that the first message of a line asks for, and the thread that serves it."""
    start: Start = line.recv()
    environment = Environment.changed(start.changes, start.membership.environment.declared)
    try:
        rank = RankProcess(replace(start.membership, environment=environment))
    except Exception as error:
        line.send(Raised.of(error, time.monotonic()))
        line.close()
        return None
    thread = threading.Thread(target=_attend, args=(line, rank), daemon=True)
    thread.start()
    return thread


def _attend(line: Connection, rank: RankProcess) -> None:
    """Passes on what is said on a line, until the controller closes it."""
    doors: list[Connection | int] = list(rank.doors)
    with line, contextlib.suppress(EOFError, OSError):
        while True:
            ready = wait([line, *doors])
            if line in ready:
                _tell(rank, line.recv())
            elif (said := rank.hear()) is None or isinstance(said, int):
                doors = [rank.sentinel] if said is None else []
                line.send(Ended(said))
            else:
                line.send(said)
    rank.kill_all()
    rank.join(time.monotonic() + KILL_SECONDS)
    rank.close()


def _tell(rank: RankProcess, message: Signal | Run | Stop) -> None:
    if not isinstance(message, Signal):
        rank.send(message)
    elif message.number is None:
        rank.kill_all()
    else:
        rank.signal(message.number)
