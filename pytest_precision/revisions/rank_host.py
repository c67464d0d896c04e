"""A process that starts ranks of another commit or installation on request.

It is a process of that interpreter, with the imports of that commit, and has a fork server of its
own. Like a host of a launch it relays messages between each rank and the controller.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
from importlib import metadata

from pytest_precision.ranks.code.relocation import Relocation, settle
from pytest_precision.ranks.launch import wire
from pytest_precision.ranks.launch.serve import Server
from pytest_precision.ranks.process.server import ensure_running


def serve_ranks() -> int:
    """Start ranks whenever the parent process asks, until it closes standard input; return 0."""
    # Ctrl-C reaches this process, too; it ends when the controller does.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    size = int(sys.stdin.buffer.readline())
    key, relocation = pickle.loads(sys.stdin.buffer.read(size))
    _settle(relocation)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what ranks print is no answer
    ensure_running()  # the fork server imports torch while this side is recorded
    with wire.listen(wire.LOOPBACK) as listener, answers:
        server = Server(listener, key)
        answers.write(json.dumps([listener.getsockname()[1], packages()]) + "\n")
        answers.flush()
        sys.stdin.buffer.read()
        server.close()
    return 0


def packages() -> dict[str, str]:
    """Return the installed packages of this interpreter with their versions."""
    distributions = (
        (distribution.metadata["Name"], distribution.version)
        for distribution in metadata.distributions()
    )
    return {name: version for name, version in distributions if name}


def _settle(relocation: Relocation) -> None:
    """Make this process and its children import code from another commit or interpreter."""
    inherited = os.environ.get("PYTHONPATH", "")
    settle(relocation)
    moved = os.environ.get("PYTHONPATH", inherited) if relocation.places else inherited
    # The fork server is a new interpreter.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (relocation.package, moved)))
    if relocation.places is not None:
        os.chdir(relocation.folder_of(os.getcwd()))
