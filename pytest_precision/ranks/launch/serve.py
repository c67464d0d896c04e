"""Start ranks on request in a launched process other than rank 0, called a host.

The host itself runs no job, since a launcher ends all processes when one of them dies. On each line
it forwards the messages between the controller and a rank, signals the rank, and reports its end.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait

from pytest_precision.ranks.launch import wire
from pytest_precision.ranks.launch.launch import SERVED, Launch
from pytest_precision.ranks.launch.launch_folder import Address, LaunchRendezvous
from pytest_precision.ranks.launch.remote import Signal, Start
from pytest_precision.ranks.process.messages import Ended, Raised, RunJob, Stop
from pytest_precision.ranks.process.process import KILL_SECONDS, RankProcess
from pytest_precision.ranks.process.server import ensure_running, kill
from pytest_precision.ranks.state.environment import Environment

ACCEPT_SECONDS = 0.1
"""Pause after a call that could not be accepted."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message to a host process: its sender lives as long as this connection is open."""


@dataclass(frozen=True, slots=True)
class Goodbye:
    """A message to a host process: the test session is over, and the sender will end.

    Attributes:
        status: exit status of the controller.
    """

    status: int


@dataclass(frozen=True, slots=True)
class Welcome:
    """A host process's answer to `Hello`, with the time on its clock.

    Attributes:
        clock: time on its monotonic clock.
    """

    clock: float


class Server:
    """Accepts connections that ask this process to start a rank, and serves each in a thread.

    Args:
        listener: socket that accepts calls.
        key: key that callers must prove to have.

    Attributes:
        met: set when the controller has called.
        over: set when the controller is gone.
        status: exit status that the controller has announced; 1 if it announced none.
    """

    def __init__(self, listener: socket.socket, key: bytes) -> None:
        self.met = threading.Event()
        self.over = threading.Event()
        self.status = 1
        self._listener = listener
        self._key = key
        self._starting = threading.Lock()
        self._closed = threading.Event()
        self._lines: list[threading.Thread] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no more connections, and wait until the ranks have ended.

        The end of the controller has closed all lines, and each closed line ends its rank.
        """
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + KILL_SECONDS
        for thread in self._lines:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                caller, _ = self._listener.accept()
            except OSError:  # no descriptor is left, or the caller
                self._closed.wait(ACCEPT_SECONDS)
                continue
            try:
                threading.Thread(target=self._receive, args=[caller], daemon=True).start()
            except RuntimeError:  # no thread is left
                caller.close()
                self._closed.wait(ACCEPT_SECONDS)

    def _receive(self, caller: socket.socket) -> None:
        line = wire.proven(caller, self._key)
        if line is None:
            return
        with line, contextlib.suppress(EOFError, OSError):
            first = line.recv() if line.poll(wire.CONNECT_SECONDS) else None
            if isinstance(first, Hello):
                self._hold(line)
            elif isinstance(first, Start):
                self._serve(line, first)

    def _hold(self, control: Connection) -> None:
        control.send(Welcome(time.monotonic()))
        self.met.set()
        try:
            while True:
                goodbye: Goodbye = control.recv()
                self.status = goodbye.status
        finally:
            self.over.set()

    def _serve(self, line: Connection, start: Start) -> None:
        self._lines.append(threading.current_thread())
        declared = start.membership.environment.declared
        try:
            with self._starting:  # it briefly changes the environment of this process
                environment = Environment.changed(start.changes, declared)
                rank = RankProcess(replace(start.membership, environment=environment))
        except Exception as error:
            line.send(Raised.of(error, time.monotonic()))
        else:
            _relay(line, rank)


def serve(launch: Launch, tell: Callable[[str], object], preload: tuple[str, ...] = ()) -> int:
    """Start ranks in this process whenever the process of rank 0 asks, until that process ends.

    Args:
        launch: this process's place in it.
        tell: called with a message if the controller takes long to call.
        preload: modules that ranks find imported.

    Returns:
        The exit status of this process: 0 on the controller's node. On another node it is the
        controller's status: with 0, torchrun there would wait for all nodes to succeed.

    Raises:
        ConnectionError: no controller has called within `MEET_SECONDS`, or it has refused.
    """
    # Ctrl-C reaches all processes of a launch. Only the controller acts on it; the others end when
    # the controller does.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    ensure_running(preload)  # the fork server imports torch while the processes meet
    os.environ[SERVED] = launch.name
    key = secrets.token_bytes(32)
    address = wire.LOOPBACK if launch.nodes == 1 else wire.own_address(launch.address)
    with wire.listen(address) as listener:
        host, port = listener.getsockname()[:2]
        server = Server(listener, key)
        _meet(LaunchRendezvous(launch), Address.here(launch, host, port, key), server.met, tell)
        server.over.wait()
        server.close()
    return server.status if launch.node else 0


def _meet(
    rendezvous: LaunchRendezvous,
    address: Address,
    met: threading.Event,
    tell: Callable[[str], object],
) -> None:
    def missing() -> list[int]:
        rendezvous.find(0)  # rank 0 writes no note except a refusal
        return [] if met.is_set() else [0]

    rendezvous.register(address)
    try:
        rendezvous.wait(missing, lambda _: f"rank 0 of {rendezvous.launch.launcher} to call", tell)
    except ConnectionError:
        kill()  # otherwise it would go on importing torch
        raise
    finally:
        rendezvous.withdraw()


def _relay(line: Connection, rank: RankProcess) -> None:
    """Forward messages between a rank and its controller; end the rank if the controller ends."""
    waitables: list[Connection | int] = list(rank.waitables)
    with line, contextlib.suppress(EOFError, OSError):
        while True:
            ready = wait([line, *waitables])
            if line in ready:
                _tell(rank, line.recv())
            else:
                said = rank.recv()
                if isinstance(said, Ended):
                    waitables = [rank.sentinel] if said.status is None else []
                    if said.status is not None:
                        rank.kill_all()  # what it left; the line may stay open for hours
                line.send(said)
    rank.kill_all()
    rank.join(time.monotonic() + KILL_SECONDS)
    rank.close()


def _tell(rank: RankProcess, message: Signal | RunJob | Stop) -> None:
    if not isinstance(message, Signal):
        rank.send(message)
    elif message.number is None:
        rank.kill_all()
    else:
        rank.signal(message.number)
