"""What pytest does in the processes that torchrun or srun has started together.

Where no collected test needs ranks, nothing: such a suite runs in every process and coordinates by
itself. Where one does, the process of rank 0 runs the tests and reports, and the others hold ranks
for it and are silent: they write no report, no cache, nothing to the terminal.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import sys
from collections.abc import Generator
from functools import partial
from typing import Any, NoReturn, TextIO

import pytest

from pytest_precision.errors import RefusedError, expected_but_got
from pytest_precision.plugin.collection import Collection
from pytest_precision.ranks.launch.hosts import Hosts
from pytest_precision.ranks.launch.launch import Launch
from pytest_precision.ranks.launch.rendezvous import LaunchRendezvous, forget
from pytest_precision.ranks.launch.serve import serve
from pytest_precision.ranks.process.messages import Raised

HOSTS = pytest.StashKey[Hosts]()
"""The processes of the launch, in the process of rank 0 once it runs tests."""


class Process:
    """The hooks of every process of a launch: one that cannot go on says why to the others."""

    def __init__(self, launch: Launch, collection: Collection) -> None:
        forget(launch)
        self.launch = launch
        self.collection = collection
        self._failures: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._failures.append(f"{report.nodeid}\n{report.longreprtext}")

    def refuse(self) -> None:
        """Leaves word of what could not be collected here, if there is anything."""
        failures = [*self._failures, *self.collection.errors]
        if failures:
            refuse(self.launch, "\n".join(failures))


class LaunchController(Process):
    """The hooks of the process of rank 0."""

    def __init__(self, launch: Launch, collection: Collection) -> None:
        super().__init__(launch, collection)
        self._serves = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._serves = needs_ranks(session.items, self.collection)

    def pytest_report_collectionfinish(self, config: pytest.Config) -> str | None:
        if not self._serves or config.get_verbosity() < 0:
            return None
        launch = self.launch
        return (
            f"precision: {launch.launcher}, {launch.world_size} ranks: this process runs the "
            "tests, each process holds one rank"
        )

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        if self._serves and runs(session):
            try:
                hosts = Hosts(self.launch, partial(_tell, session.config))
            except OSError as error:  # of which all errors on connections are
                raise pytest.UsageError(str(error)) from error
            session.config.stash[HOSTS] = hosts
            session.config.add_cleanup(lambda: hosts.close(int(session.exitstatus)))
        return (yield)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if HOSTS not in session.config.stash:
            self.refuse()


class RankHolder(Process):
    """The hooks of all other processes."""

    def __init__(self, launch: Launch, collection: Collection) -> None:
        super().__init__(launch, collection)
        self._held: tuple[Any, TextIO, io.StringIO] | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Hold back what the terminal would show, until it is known whether it may."""
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            writer = reporter._tw  # no public name
            self._held = writer, writer._file, io.StringIO()
            writer._file = self._held[2]

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if not needs_ranks(session.items, self.collection):
            self._let_go()
        elif self.collection.errors:  # which rank 0 reports
            self.refuse()
            _leave()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        if not needs_ranks(session.items, self.collection):
            return
        if not runs(session):
            self.refuse()
            _leave()
        try:
            status = serve(self.launch, self._say)
        except RefusedError:  # rank 0 reports what it could not do
            status = 0
        except (OSError, EOFError, RuntimeError) as error:
            self._say(f"precision: {error}")
            refuse(self.launch, str(error))
            status = 1
        _leave(status)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """For a session that ends before its tests are known, or whose tests cannot be."""
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
    """Whether one of these tests is ours: a cell that is to run, or a test of `ranks`."""
    return any(
        collection.cell_to_run(item) is not None
        or ("ranks" in getattr(item, "fixturenames", ()) and item.get_closest_marker("world_size"))
        for item in items
    )


def runs(session: pytest.Session) -> bool:
    """Whether the tests of a session run once they are collected."""
    option = session.config.option
    broken = session.testsfailed and not option.continue_on_collection_errors
    return not (option.collectonly or broken)


def refusal(items: list[pytest.Item], collection: Collection) -> list[str]:
    """For a worker of xdist: why it may not run these tests here, if it may not."""
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
    """What the others are told of an error that has ended pytest in this process."""
    if isinstance(error, pytest.UsageError):
        return "\n".join(map(str, error.args))
    return Raised.of(error.__cause__ or error, 0.0).traceback


def refuse(launch: Launch, reason: str) -> None:
    """Leaves word for the other processes of a launch that this one will not take part."""
    with contextlib.suppress(OSError):  # then nobody hears of it, as of a process that died
        LaunchRendezvous(launch).refuse(reason)


def _tell(config: pytest.Config, text: str) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.ensure_newline()
        reporter.write_line(text)
        reporter.flush()


def _leave(status: int = 0) -> NoReturn:
    """Ends this process as Python does, without the hooks by which pytest's plugins report."""
    atexit._run_exitfuncs()
    os._exit(status)
