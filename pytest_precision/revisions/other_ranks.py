"""Start ranks that run the code of another commit, or of another interpreter."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import secrets
import subprocess
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path

from pytest_precision.ranks.code.relocation import Relocation, folders_left
from pytest_precision.ranks.handle import Rank
from pytest_precision.ranks.launch import wire
from pytest_precision.ranks.launch.remote import RemoteRank, Start
from pytest_precision.ranks.process.messages import MORE_TIME
from pytest_precision.ranks.process.worker import Membership
from pytest_precision.revisions.installation import Installation
from pytest_precision.revisions.rank_host import packages

HOST_SECONDS = 10.0
"""Time that the host has to end its ranks and to leave."""


class OtherRanks:
    """Starts ranks in another commit or interpreter, through one host process that runs in it.

    Args:
        installation: whose code the ranks run.
        package: folder with this package and nothing else.

    Raises:
        OSError: the interpreter cannot be started.
    """

    def __init__(self, installation: Installation, package: Path) -> None:
        self._name = installation.name
        left = () if installation.is_of_this_interpreter else folders_left()
        self._relocation = Relocation(str(package), installation.places, left)
        self._key = secrets.token_bytes(32)
        self._before = _environment(self._relocation)
        self._port: int | None = None
        self._packages: dict[str, str] = {}
        self._host = subprocess.Popen(
            installation.words(package, "pytest_precision.revisions.rank_host:serve_ranks"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._before,
        )
        message = pickle.dumps((self._key, self._relocation))
        assert self._host.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `start` says how it has ended
            self._host.stdin.write(b"%d\n%b" % (len(message), message))
            self._host.stdin.flush()

    def differences(self) -> dict[str, list[str]]:
        """Return the packages whose versions in the ranks' interpreter and in this one differ."""
        if not self._relocation.left:
            return {}
        self._await_port(HOST_SECONDS)  # a rank has been started before
        own_packages, rank_packages = packages(), self._packages
        names = sorted(own_packages.keys() | rank_packages.keys())
        both = {
            name: [own_packages.get(name, "none"), rank_packages.get(name, "none")]
            for name in names
        }
        return {name: versions for name, versions in both.items() if versions[0] != versions[1]}

    def start(self, membership: Membership) -> Rank:
        """Start a rank in the other commit or interpreter, and return its handle.

        Raises:
            RankError: the host has ended, or does not answer.
        """
        try:
            line = wire.dial(wire.LOOPBACK, self._await_port(membership.start_seconds), self._key)
        except (OSError, ValueError) as error:
            who = f"the process that starts ranks of {self._name}"
            raise membership.not_started("died", f"{who} does not answer: {error}") from error
        start = Start.of(replace(membership, relocation=self._relocation), self._before)
        if self._relocation.left:
            start.changes.pop("PYTHONPATH", None)  # the host has its own
        return RemoteRank(line, start, 0.0)

    def close(self) -> None:
        """End all ranks, and the process that starts them, within a bounded time."""
        self._end()
        assert self._host.stdout is not None
        self._host.stdout.close()

    def _end(self) -> int:
        """End all ranks and the process that starts them; return its exit status."""
        assert self._host.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has not read all
            self._host.stdin.close()
        try:
            return self._host.wait(HOST_SECONDS)
        except subprocess.TimeoutExpired:
            self._host.kill()
            return self._host.wait()

    def _await_port(self, seconds: float) -> int:
        """Wait for the port of the process that starts the ranks; kill it if it is late."""
        if self._port is None:
            assert self._host.stdout is not None
            if not wait([self._host.stdout.fileno()], seconds):
                self._host.kill()
                raise TimeoutError(f"no word within {seconds:g} s. {MORE_TIME}")
            said = self._host.stdout.readline()
            if not said:
                raise ChildProcessError(
                    f"it has ended with status {self._end()}; read what it wrote with -s"
                )
            self._port, self._packages = json.loads(said)
        return self._port


def _environment(relocation: Relocation) -> dict[str, str]:
    """Return the environment for ranks, without this interpreter's packages in PYTHONPATH."""
    variables = dict(os.environ)
    folders = variables.get("PYTHONPATH", "").split(os.pathsep)
    kept_folders = [folder for folder in folders if folder and not relocation.leaves(folder)]
    return (
        variables | {"PYTHONPATH": os.pathsep.join(kept_folders)} if relocation.left else variables
    )
