"""Connections between machines: multiprocessing's, over TCP, both ends of which hold a key.

Either end proves it by a code of what the other end has drawn, before one byte is unpickled.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

CONNECT_SECONDS = 10.0
"""To reach a process that is there and to hear that it has the key: one that is stopped does not
answer, and what else connects to an open port may never say a word, or one a second."""

LOOPBACK = "127.0.0.1"

_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),  # messages are small, and somebody waits for each
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),  # a machine that is gone closes nothing
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


def own_address(host: str) -> str:
    """The address under which this machine is known where `host` is; nothing is sent.

    Raises:
        OSError: there is no way to `host`.
    """
    failure = OSError(f"no address of {host}")
    found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)  # any port: nothing is sent
    for family, kind, protocol, _, target in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(target)
                return str(probe.getsockname()[0])
        except OSError as error:
            failure = error
    raise failure


def listen(address: str) -> socket.socket:
    """A server at a free port of an address of this machine."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, 0), family=family, backlog=64)


def proven(caller: socket.socket, key: bytes) -> Connection | None:
    """The connection to a caller that a server has accepted; None for one without the key."""
    try:
        return _connection(caller, key, asked=True)
    except Exception:  # a stranger may say anything, and multiprocessing raises as much
        return None


def dial(address: str, port: int, key: bytes) -> Connection:
    """A connection to a server.

    Raises:
        OSError: nobody answers there in time, or not with the key.
    """
    caller = socket.create_connection((address, port), CONNECT_SECONDS)
    try:
        return _connection(caller, key, asked=False)
    except Exception as error:
        raise ConnectionAbortedError(
            f"{address}:{port} did not show within {CONNECT_SECONDS:g} s that it knows the key: "
            f"{type(error).__name__}: {error}"
        ) from error


def _connection(caller: socket.socket, key: bytes, *, asked: bool) -> Connection:
    caller.settimeout(None)  # the descriptor blocks from here on
    for level, option, value in _OPTIONS:
        caller.setsockopt(level, option, value)
    connection = Connection(os.dup(caller.fileno()))
    limit = threading.Timer(CONNECT_SECONDS, _cut_off, [caller])
    limit.daemon = True
    limit.start()
    try:
        for step in (deliver_challenge, answer_challenge)[:: 1 if asked else -1]:
            step(connection, key)
    except BaseException:
        connection.close()
        raise
    finally:
        limit.cancel()
        caller.close()
    return connection


def _cut_off(caller: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it was done in the last moment
        caller.shutdown(socket.SHUT_RDWR)
