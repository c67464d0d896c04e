"""The ranks of a launch that run the same command."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch.distributed as dist
from slack import slack
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from pytest_precision.ranks.process.rendezvous import reserved_port
from pytest_precision.revisions import peers
from pytest_precision.revisions.peers import Peers, tell_launcher


def of_rank(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    """Set what torchrun sets for rank 1 of two."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    place = {"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for name, value in (where | place).items():
        monkeypatch.setenv(name, value)


def test_a_launcher_that_is_gone_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where it is killed while its processes import torch."""
    monkeypatch.setattr(peers, "MEET_SECONDS", 0.5)
    limit = slack()  # of this session, and not of the rank that it is made to be
    started = time.monotonic()
    with reserved_port() as port:
        of_rank(monkeypatch, port)
        with pytest.raises(dist.DistError):
            Peers()
    assert time.monotonic() - started < limit


def test_a_rank_that_trains_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than a process that starts."""
    served = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    of_rank(monkeypatch, served.port)
    monkeypatch.setattr(peers, "MEET_SECONDS", 5)
    store = Peers()._store
    assert store is not None
    assert store.timeout.total_seconds() == peers.SECONDS


def test_the_report_of_torchrun_ends_with_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows what a process writes into the file that it names, below all that it says itself."""
    tell_launcher("a differs from b")  # no launcher, no file
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    tell_launcher("a differs from b\n  first wrong value: train.py:2")
    failure = ProcessFailure(0, 1, 1, str(tmp_path / "error.json"))
    *_, before, last, _ = str(ChildFailedError("diff", {0: failure})).splitlines()
    assert before == "  traceback : a differs from b"
    assert last.strip() == "first wrong value: train.py:2"
