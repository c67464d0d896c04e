"""Connections between the processes of a launch: only those who hold the key are talked to."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest
from slack import slack

from pytest_precision.ranks.launch import wire
from pytest_precision.ranks.launch.serve import Hello, Server

KEY = b"of this launch"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    monkeypatch.setattr(wire, "CONNECT_SECONDS", 0.3)
    with wire.listen("127.0.0.1") as server:
        yield server


def accepted(server: socket.socket) -> tuple[threading.Thread, list[Connection | None]]:
    """What the server takes the next caller for, once the thread has ended."""
    found: list[Connection | None] = []
    thread = threading.Thread(target=lambda: found.append(wire.proven(server.accept()[0], KEY)))
    thread.start()
    return thread, found


def test_both_ends_hold_the_key(server: socket.socket) -> None:
    """What one says, the other hears, at any later time."""
    thread, found = accepted(server)
    with wire.dial(*server.getsockname(), KEY) as caller:
        thread.join()
        time.sleep(0.4)  # longer than strangers have
        with found[0] as called:
            caller.send({"a": 1})
            assert called.recv() == {"a": 1}


def test_a_caller_with_another_key(server: socket.socket) -> None:
    """Neither end gets a connection."""
    thread, found = accepted(server)
    with pytest.raises(OSError, match=r"did not prove within .*, by the key of this run,"):
        wire.dial(*server.getsockname(), b"of another launch")
    thread.join()
    assert found == [None]


def test_a_silent_caller(server: socket.socket) -> None:
    """Who scans ports and says nothing is not waited for."""
    with socket.create_connection(server.getsockname()):
        thread, found = accepted(server)
        thread.join(5)
        assert found == [None]


def test_a_caller_that_says_a_byte_now_and_then(server: socket.socket) -> None:
    """All that a caller says has one deadline, not every byte of it."""
    with socket.create_connection(server.getsockname()) as caller:
        thread, found = accepted(server)
        until = time.monotonic() + 5
        with contextlib.suppress(OSError):  # it is hung up on
            for byte in b"\0\0\0\x80" + bytes(100):
                caller.send(bytes([byte]))
                time.sleep(0.1)
        thread.join(until - time.monotonic())
        assert found == [None]
        assert time.monotonic() < until


def test_a_process_that_is_stopped(server: socket.socket) -> None:
    """The kernel takes a call that nobody answers; the caller gives up."""
    asked = time.monotonic()
    with pytest.raises(ConnectionAbortedError):
        wire.dial(*server.getsockname(), KEY)
    assert time.monotonic() - asked < 3


def test_a_host_that_has_no_descriptor_left_answers_later(server: socket.socket) -> None:
    """It does not stop to listen; nor does it where a caller is gone before it is accepted."""
    served = Server(server, KEY)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as caller:
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, most[1]))
        try:
            caller.connect(server.getsockname())
            time.sleep(0.2)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, most)
    with wire.dial(*server.getsockname(), KEY) as control:
        control.send(Hello())
        assert control.poll(slack())
    served.close()


def test_the_address_where_others_find_this_machine() -> None:
    """It is one of the network that the given host is in."""
    assert wire.own_address("127.0.0.1") == "127.0.0.1"
