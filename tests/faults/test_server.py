"""The process that starts ranks is stopped or dies; the folder of both is emptied."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import replace
from multiprocessing import connection, forkserver, popen_forkserver

import psutil
import pytest
from slack import slack

from pytest_precision import RankError
from pytest_precision.ranks import RankPool
from pytest_precision.ranks.process import server
from pytest_precision.ranks.process.process import RankProcess
from pytest_precision.trace.cache import TraceCache


@pytest.fixture
def own_server():
    """A pool, and the fork server of its ranks, which a test may harm; the next one is another."""
    pool = RankPool(timeout=60)
    yield pool, psutil.Process(pool.run(1, os.getppid)[0])
    pool.close()


def soon(membership):
    return RankProcess(replace(membership, start_seconds=0.5))


def test_a_stopped_server(own_server):
    """It is given a deadline, named and replaced, and what it still holds does not hang.

    One that still imports gets the same deadline, and another advice.
    """
    pool, process = own_server
    process.suspend()
    started = time.monotonic()
    with pytest.raises(RankError, match=f"hung: the fork server, process {process.pid}, .*stopped"):
        RankPool(start=soon).run(2, os.getpid)
    pool.close()
    with pytest.raises(RankError, match=r"(?s)hung: .*may still import .*--precision-timeout"):
        RankPool(start=soon).run(2, os.getpid)
    assert time.monotonic() - started < slack()
    assert pool.run(1, os.getppid) != [process.pid]


def test_a_server_that_is_stopped_while_ranks_wait(own_server, monkeypatch):
    """Their pool ends them; Python, when it ends, waits for no word of theirs from the server."""
    monkeypatch.setattr("pytest_precision.ranks.handle.KILL_SECONDS", 0.5)
    pool, process = own_server
    # Other tests of this worker may share a pool that stays open.
    children = multiprocessing.active_children()
    own = {child for child in children if psutil.Process(child.pid).ppid() == process.pid}
    assert len(own) == 1
    process.suspend()
    pool.close()
    assert own.isdisjoint(multiprocessing.active_children())


def die_with_the_server():
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def test_a_dead_server(own_server):
    """What became of its ranks is said; the next job has ranks again."""
    pool, process = own_server
    with pytest.raises(RankError, match="died: exit status 255: its own, or its fork server was"):
        pool.run(1, die_with_the_server)
    assert pool.run(1, os.getppid) != [process.pid]


def test_a_rank_that_starts_is_no_child_of_a_rank_that_is_gone(own_server, monkeypatch):
    """A host starts and ends ranks in threads: a rank may be a child that nobody knows yet."""
    launch = popen_forkserver.Popen._launch
    born, over = threading.Event(), threading.Event()

    def launch_late(self, process):
        launch(self, process)
        born.set()
        over.wait(0.5)  # as on a machine with too little time for this thread

    monkeypatch.setattr(popen_forkserver.Popen, "_launch", launch_late)

    def end_ranks():
        born.wait()
        server.end_adopted()
        over.set()

    ending = threading.Thread(target=end_ranks)
    ending.start()
    try:
        assert len(RankPool("fresh", timeout=60).run(1, os.getppid)) == 1
    finally:
        born.set()
        ending.join()


@pytest.fixture
def ended(own_server):
    """A rank that was killed."""
    started = []

    def start(membership):
        started.append(RankProcess(membership))
        return started[-1]

    pool = RankPool(timeout=60, start=start)
    os.kill(pool.run(1, os.getpid)[0], signal.SIGKILL)
    yield started[0]
    pool.close()


def test_a_status_is_there_for_all_threads_that_ask(ended, monkeypatch):
    """Multiprocessing asks at each start; it takes the status that is gone for a server's end."""
    read = forkserver.read_signed

    def read_late(descriptor):
        time.sleep(0.2)  # as on a machine with too little time for this thread
        return read(descriptor)

    monkeypatch.setattr(forkserver, "read_signed", read_late)
    asking = threading.Thread(target=multiprocessing.active_children)
    connection.wait([ended.sentinel])
    asking.start()
    time.sleep(0.05)
    assert ended.recv().status == -signal.SIGKILL
    asking.join()


def test_a_number_that_may_belong_to_another_process_is_not_killed(ended, monkeypatch):
    """What a rank left is ended once after it; a host may do so again hours later."""
    killed = []
    monkeypatch.setattr("os.killpg", lambda number, signal: killed.append(number))
    assert ended.recv().status == -signal.SIGKILL
    ended.kill_all()
    assert len(killed) == 1
    ended.kill_all()
    assert len(killed) == 1


def elsewhere(membership):
    return RankProcess(replace(membership, folder=membership.folder / "missing"))


def test_a_rank_that_cannot_open_its_output(nothing_left):
    """The cause is in the error, not on a terminal that nobody sees."""
    with pytest.raises(RankError, match=r"raised FileNotFoundError: .*missing/rank0\.log"):
        RankPool(start=elsewhere).run(1, os.getpid)


def filled(traces):
    """Keep a folder with one file; return it."""
    with traces.new_folder() as folder:
        (folder / "trace").touch()
    traces.keep("key", folder, (), outlasts_check=True)
    return folder


def leave_a_child():
    """Start a process that ends with no signal to this rank's own processes."""
    return subprocess.Popen(["sleep", "600"], start_new_session=True).pid


def test_an_emptied_temporary_folder(tmp_path, monkeypatch, own_server):
    """Traces, groups and the socket of the server are made anew where they were.

    A server that is replaced takes along what its ranks have started.
    """
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pool, process = own_server
    pool.close()
    child = psutil.Process(pool.run(1, leave_a_child)[0])
    traces = TraceCache()
    first = filled(traces)
    made = [*tmp_path.glob("pytest-precision-*")]
    assert len(made) == 2, "of the traces and of the group"
    for folder in (*made, server._home().path):
        shutil.rmtree(folder)
    server.ensure_running()  # before the pool ends its ranks, and with them what they have started
    _, alive = psutil.wait_procs([process, child], timeout=slack())
    assert alive == []
    assert traces.find("key") is None
    again = filled(traces)
    assert traces.find("key") == again
    assert (again / "trace").exists()
    assert not first.exists()
    assert pool.run(1, os.getppid) != [process.pid]
    traces.close()
