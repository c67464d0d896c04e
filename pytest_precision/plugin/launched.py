"""Pytest hooks for the processes that torchrun or srun has started together.

If no collected test needs ranks, the suite runs in every process as without the plugin. If a test
does, the process of rank 0 runs the tests and reports; the other processes hold ranks for it and
are silent: they write no report and no cache, and nothing to the terminal.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NoReturn, TextIO

import pytest

from pytest_precision.errors import RefusedError, expected_but_got
from pytest_precision.options import SETTINGS
from pytest_precision.plugin.collection import Collection
from pytest_precision.ranks.launch.hosts import Hosts
from pytest_precision.ranks.launch.launch import Launch
from pytest_precision.ranks.launch.launch_folder import LaunchRendezvous, forget
from pytest_precision.ranks.launch.serve import serve
from pytest_precision.ranks.process.messages import Raised

HOSTS = pytest.StashKey[Hosts]()
"""Key of the processes of the launch, set in the process of rank 0 before it runs tests."""


LAUNCHER_SECONDS = 1.0
"""Pause between two looks for torchrun."""


class Process:
    """The hooks of every pytest process that torchrun or srun has started."""

    def __init__(self, launch: Launch, collection: Collection) -> None:
        forget(launch)
        self.launch = launch
        self.collection = collection
        self._failures: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record errors of test collection, to tell the other launched processes."""
        if report.failed:
            self._failures.append(f"{report.nodeid}\n{report.longreprtext}")

    def refuse(self) -> None:
        """Tell the other launched processes of errors in test collection, if there are any."""
        failures = [*self._failures, *self.collection.errors]
        if failures:
            refuse_rank(self.launch, "\n".join(failures))


class LaunchController(Process):
    """The hooks of the launched pytest process of rank 0, which runs the tests."""

    def __init__(self, launch: Launch, collection: Collection) -> None:
        super().__init__(launch, collection)
        self._parent = os.getppid()  # before the meeting, in which torchrun may end
        self._serves = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Record whether any collected test needs rank processes."""
        self._serves = needs_ranks(session.items, self.collection)

    def pytest_report_collectionfinish(self, config: pytest.Config) -> str | None:
        """Return a line that names the launcher; None with -q or if no test needs ranks."""
        if not self._serves or config.get_verbosity() < 0:
            return None
        launch = self.launch
        return (
            f"precision: {launch.launcher}, {launch.world_size} ranks: this process runs the "
            "tests, each process holds one rank"
        )

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Connect to the other launched processes before the first test, if any needs ranks."""
        if self._serves and runs(session):
            try:
                hosts = Hosts(self.launch, partial(_tell, session.config))
            except OSError as error:  # this includes all connection errors
                raise pytest.UsageError(str(error)) from error
            session.config.stash[HOSTS] = hosts
            session.config.add_cleanup(lambda: hosts.close(int(session.exitstatus)))
            session.config.add_cleanup(_follow_torchrun(self.launch, self._parent))
        return (yield)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Tell the other processes of collection errors, if none is connected yet."""
        if HOSTS not in session.config.stash:
            self.refuse()


class RankHolder(Process):
    """The hooks of every launched pytest process except that of rank 0."""

    def __init__(self, launch: Launch, collection: Collection) -> None:
        super().__init__(launch, collection)
        self._held: tuple[Any, TextIO, io.StringIO] | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Buffer terminal output until it is known whether this process may write it."""
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            writer = reporter._tw  # no public name
            self._held = writer, writer._file, io.StringIO()
            writer._file = self._held[2]

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Show buffered output if no test needs ranks; end the process on collection errors."""
        if not needs_ranks(session.items, self.collection):
            self._let_go()
        elif self.collection.errors:  # rank 0 reports them
            self.refuse()
            _leave()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Run ranks for the process of rank 0 instead of tests, if any test needs ranks."""
        if not needs_ranks(session.items, self.collection):
            return
        if not runs(session):
            self.refuse()
            _leave()
        preload = session.config.stash[SETTINGS].preload
        try:
            status = serve(self.launch, self._say, preload)
        except RefusedError:  # rank 0 reports its own failure
            status = 0
        except (OSError, EOFError, RuntimeError) as error:
            self._say(f"precision: {error}")
            refuse_rank(self.launch, str(error))
            status = 1
        _leave(status)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Tell the other processes what failed, and write buffered output."""
        self.refuse()
        self._let_go()

    def _say(self, text: str) -> None:
        print(f"{text} (rank {self.launch.rank})", file=sys.stderr, flush=True)

    def _let_go(self) -> None:
        if self._held is not None:
            writer, file, text = self._held
            writer._file = file
            file.write(text.getvalue())
            self._held = None


def needs_ranks(items: list[pytest.Item], collection: Collection) -> bool:
    """Return whether any test needs ranks: a matrix test, or one with `ranks` and `world_size`."""
    return any(
        collection.cell_to_run(item) is not None
        or ("ranks" in getattr(item, "fixturenames", ()) and item.get_closest_marker("world_size"))
        for item in items
    )


def runs(session: pytest.Session) -> bool:
    """Return whether a session runs tests: not if it only collects, or if collection failed."""
    option = session.config.option
    broken = session.testsfailed and not option.continue_on_collection_errors
    return not (option.collectonly or broken)


def launch_refusal(items: list[pytest.Item], collection: Collection) -> list[str]:
    """Return why xdist workers cannot run under torchrun or srun; empty if they can."""
    launch = Launch.of(os.environ)
    if launch is None or not needs_ranks(items, collection):
        return []
    return [
        expected_but_got(
            f"no -n under {launch.launcher}, whose {launch.world_size} processes hold the ranks,",
            f"{os.environ['PYTEST_XDIST_WORKER_COUNT']} workers in each",
            "leave -n out, or start one pytest",
        )
    ]


def reason(error: BaseException) -> str:
    """Return the text that tells the other launched processes why pytest ended in this one."""
    if isinstance(error, pytest.UsageError):
        return "\n".join(map(str, error.args))
    return Raised.of(error.__cause__ or error, 0.0).traceback


def refuse_rank(launch: Launch, reason: str) -> None:
    """Tell the other launched processes that this one cannot run a rank."""
    with contextlib.suppress(OSError):  # the others then learn no more than of a process that died
        LaunchRendezvous(launch).refuse(reason)


def _follow_torchrun(launch: Launch, parent: int) -> Callable[[], None]:
    """Start a thread that ends this process if torchrun is killed.

    A torchrun that is killed leaves its processes, and GPUs would be busy until the last test is
    over. Slurm ends all processes of a step.

    Args:
        launch: the launch.
        parent: number of this process's parent at its start, which may be 1 in a container.

    Returns:
        Ends this watch.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LAUNCHER_SECONDS):
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGTERM)

    if launch.launcher == "torchrun":
        threading.Thread(target=watch, name="precision-launcher", daemon=True).start()
    return over.set


def _tell(config: pytest.Config, text: str) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.ensure_newline()
        reporter.write_line(text)
        reporter.flush()


def _leave(status: int = 0) -> NoReturn:
    """End this process without the hooks in which pytest's plugins report."""
    atexit._run_exitfuncs()
    os._exit(status)
