"""TCP connections on which both ends prove that they have a secret key.

Each end proves that it has the key by a digest of the other end's random challenge, before any byte
is unpickled.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

CONNECT_SECONDS = 10.0
"""Time to connect and to prove the key: a stopped process does not answer, and a stranger that
connects to an open port may send nothing, or one byte per second."""

LOOPBACK = "127.0.0.1"

_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),  # messages are small, and each is awaited
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),  # a machine that is lost closes no connection
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


def own_address(host: str) -> str:
    """Return this machine's address on the route to `host`, without sending anything.

    Raises:
        OSError: there is no route to `host`.
    """
    failure = OSError(f"no address of {host}")
    addresses = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)  # any port: nothing is sent
    for family, kind, protocol, _, target in addresses:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(target)
                return str(probe.getsockname()[0])
        except OSError as error:
            failure = error
    raise failure


def listen(address: str) -> socket.socket:
    """Return a socket that listens at a free port of this machine."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, 0), family=family, backlog=64)


def proven(caller: socket.socket, key: bytes) -> Connection | None:
    """Authenticate a caller by its key; return the connection, or None if that fails."""
    try:
        return _connection(caller, key, is_server=True)
    except Exception:  # a stranger may send anything, so multiprocessing may raise anything
        return None


def dial(address: str, port: int, key: bytes) -> Connection:
    """Connect to a server, and return the connection once both ends have proved to have the key.

    Raises:
        OSError: no server answers in time, or it does not prove the key.
    """
    caller = socket.create_connection((address, port), CONNECT_SECONDS)
    try:
        return _connection(caller, key, is_server=False)
    except Exception as error:
        raise ConnectionAbortedError(
            f"{address}:{port} did not prove within {CONNECT_SECONDS:g} s, by the key of this run, "
            f"that it belongs to it: {type(error).__name__}: {error}"
        ) from error


def _connection(caller: socket.socket, key: bytes, *, is_server: bool) -> Connection:
    caller.settimeout(None)  # the descriptor blocks from here on
    for level, option, value in _OPTIONS:
        caller.setsockopt(level, option, value)
    connection = Connection(os.dup(caller.fileno()))
    limit = threading.Timer(CONNECT_SECONDS, _cut_off, [caller])
    limit.daemon = True
    limit.start()
    try:
        for step in (deliver_challenge, answer_challenge)[:: 1 if is_server else -1]:
            step(connection, key)
    except BaseException:
        connection.close()
        raise
    finally:
        limit.cancel()
        caller.close()
    return connection


def _cut_off(caller: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the key was proved at the last moment
        caller.shutdown(socket.SHUT_RDWR)
