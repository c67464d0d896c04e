"""Record a script as it is in several commits or installations."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pytest_precision._folders import OwnFolder
from pytest_precision._git import git
from pytest_precision._within import path_within
from pytest_precision.errors import RevisionError, expected_but_got
from pytest_precision.revisions.installation import Installation, called, link_package
from pytest_precision.revisions.peers import Peers
from pytest_precision.revisions.run_servers import Running, RunServers, Seat, run_servers
from pytest_precision.revisions.work_tree import commit_of, repository_of, work_tree

ENDING_SECONDS = 10.0
"""Time that the ranks of a script have to end by themselves after one of them has failed."""


@dataclass
class Sides:
    """Records runs of a script in several commits or interpreters, on every rank of a launch.

    Attributes:
        script: the file and its arguments, as they are written in the user's folder.
        options: of `record`.
        links: data in the repository that git does not track and that every commit is to have.
        stack: removes the folder.
        quiet: whether nothing is said on how far the runs have come.
        peers: the ranks of the launch.
        servers: start what is recorded here as forks that have torch.
        folder: the temporary folder.

    Raises:
        RevisionError: the ranks see no common temporary folder.
    """

    script: Sequence[str]
    options: Sequence[str]
    links: Sequence[Path]
    stack: ExitStack
    quiet: bool = False
    peers: Peers = field(default_factory=Peers)
    servers: RunServers = field(init=False)
    folder: Path = field(init=False)

    def __post_init__(self) -> None:
        self.servers = self.stack.enter_context(run_servers())
        self.folder = Path(self.peers.agree("folder", self._new_folder))
        status = 0 if self.folder.is_dir() else 2
        self.peers.tell("folder", status)
        self.peers.statuses("folder", status)  # rank 0 may fail from here on, and then removes it
        if status:
            raise RevisionError(
                expected_but_got(
                    "a temporary folder that all ranks see",
                    f"none at {self.folder} on rank {self.peers.rank}",
                    "set TMPDIR to a folder on a shared disk",
                )
            )

    @property
    def repository(self) -> Path:
        """Return the root of the repository that has the script, or the file of a test's node id.

        Raises:
            RevisionError: it is in none.
        """
        return repository_of(Path(self.script[0].partition("::")[0]).resolve().parent)

    def here(self) -> Installation:
        """Return the installation of this interpreter and the user's present files."""
        return Installation("this side", Path(sys.executable))

    def is_here(self, revision: str) -> bool:
        """Return whether a commit is checked out here, and all tracked files are as it has them."""
        root = self.repository
        same = commit_of(root, revision) == commit_of(root, "HEAD")
        return same and not git(root, "status", "--porcelain", "--untracked-files=no")

    @contextmanager
    def at(self, revision: str, python: Path | None = None) -> Iterator[Installation]:
        """Check out a commit during the block; yield it, with an interpreter, as an `Installation`.

        Args:
            revision: git's name of it.
            python: the interpreter, this one by default.

        Raises:
            RevisionError: git knows no such commit, or cannot check it out.
        """
        root = self.repository
        commit = commit_of(root, revision)
        name = called(revision, commit, python)
        tree = self.folder / "trees" / commit
        with ExitStack() as stack:
            self.peers.agree(f"tree/{commit}", lambda: self._checked_out(root, commit, tree, stack))
            yield Installation(name, python or Path(sys.executable), (root, tree))

    def record(
        self, side: Installation, name: str, options: Sequence[str] = (), seat: Seat = "candidate"
    ) -> Path:
        """Record the script, run by `side` in new processes, one per rank; return the folder.

        What the script prints goes to this process's standard error.

        Args:
            side: what runs the script.
            name: of the recording in the folder.
            options: further ones of `record`, which win over those of all recordings.
            seat: side of the comparison; two recordings of one are not compared.

        Raises:
            RevisionError: a rank failed; the message has its status.
        """
        file = self.script[0]
        cwd = self.folder_in(side)
        label = f"{file}: {side.name}"
        if self.peers.rank == 0 and not self.quiet:
            print(f"pytest_precision: recording {label}", file=sys.stderr, flush=True)
        folder = self.folder / name
        arguments = ["record", "--out", str(folder), "--label", label, *self.options, *options]
        arguments += ["--quiet"] if self.quiet else []
        arguments += ["--moved", *map(str, side.places)] if side.places else []
        arguments += ["--", os.path.relpath(file), *self.script[1:]]
        with self._running_process(seat, side, name, arguments, cwd) as process:
            status = self._exit_status(process, name)
        self.peers.tell(name, status)
        statuses = self.peers.statuses(name, status)
        if any(statuses):
            raise RevisionError(_failure(file, side, statuses))
        return folder

    def folder_in(self, side: Installation) -> Path:
        """Return a side's folder in place of the working directory.

        Raises:
            RevisionError: that, or the script, is a link of the commit's which leads elsewhere.
        """
        side.folder_of(Path(self.script[0]))
        return side.folder_of(Path.cwd())

    @contextmanager
    def _running_process(
        self, seat: Seat, side: Installation, name: str, arguments: Sequence[str], cwd: Path
    ) -> Iterator[Running]:
        """Start a run of the command line, as a fork or as a new interpreter; yield its process."""
        function = "pytest_precision.__main__:main"
        forked = self.servers.start(seat, side, function, arguments, cwd)
        if forked is not None:
            yield forked
            return
        with self.peers.environment(name) as variables:
            yield subprocess.Popen(
                [*side.words(self.folder / "plugin", function), *arguments],
                cwd=cwd,
                env=os.environ | variables,
                stdout=2,  # standard error, whatever `sys.stderr` is here
            )

    def _new_folder(self) -> str:
        folder = self.stack.enter_context(OwnFolder("diff-"))
        link_package(folder / "plugin")
        return str(folder)

    def _checked_out(self, root: Path, commit: str, tree: Path, stack: ExitStack) -> str:
        stack.enter_context(work_tree(root, commit, tree))
        for path in self.links:
            _link(path, root, tree)
        return commit

    def _exit_status(self, process: Running, name: str) -> int:
        """Return a process's exit status; end the process if another rank has failed."""
        until: float | None = None
        try:
            while (status := process.poll()) is None:
                if until is None and self.peers.any_failed(name):
                    until = time.monotonic() + ENDING_SECONDS
                if until is not None and time.monotonic() > until:
                    process.kill()
                time.sleep(0.02)
            return status
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def _failure(script: str, side: Installation, statuses: Sequence[int]) -> str:
    # A rank that was ended because of another one has a negative status.
    status = max(statuses, key=lambda code: (code > 0, code != 0))
    ended = f"signal {-status}" if status < 0 else f"status {status}"
    advice = "its output is above"
    if side.places:
        advice += "; files that git does not track are not there unless --link PATH names them"
    rank = statuses.index(status)
    return f"{script} failed on rank {rank} with {ended}: {side.name}; {advice}"


def _link(path: Path, root: Path, tree: Path) -> None:
    """Link untracked files of the user's repository into a work tree."""
    source = Path(os.path.abspath(path))
    if not source.exists() or not source.is_relative_to(root):
        raise RevisionError(
            expected_but_got(
                f"a path in {root}", f"--link={path}", "name an existing file or folder of it"
            )
        )
    advice = "leave this --link out"
    got = f"--link={path}, which the commit has"
    link = path_within(
        tree, str(source.relative_to(root)), f"--link={path}", advice=advice, error=RevisionError
    )
    if os.path.lexists(link):
        raise RevisionError(expected_but_got("data that git does not track", got, advice))
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        got = f"--link={path}, below a file that the commit has"
        raise RevisionError(
            expected_but_got("data that git does not track", got, advice)
        ) from error
    link.symlink_to(source)
