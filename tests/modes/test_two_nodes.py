"""Nodes with disks of their own: what they record is joined, what cannot work says so."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore
from two_nodes import (
    LOOP,
    Node,
    delayed_packets,
    on_both,
    record_words,
    slow_down,
    stand_in_for_slurm,
    two_nodes,
)

from pytest_precision.__main__ import main
from pytest_precision.ranks.launch import launch_folder
from pytest_precision.ranks.launch.arrivals import Arrivals
from pytest_precision.ranks.launch.launch import Launch
from pytest_precision.ranks.launch.launch_folder import LaunchRendezvous

ROOT = Path(__file__).parents[2]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Node]]:
    with two_nodes(tmp_path) as nodes:
        for node in nodes:
            (node.disk / "loop.py").write_text(LOOP)
        yield nodes


def record(nodes: list[Node], out: str, *words: str, **second: str | int) -> list[str]:
    """Record the loop on both nodes; return what each wrote, and its status."""
    command = record_words(out, *words)
    first, other = nodes
    return on_both([first.command(command), other.command(command, **second)], nodes)


def joined(nodes: list[Node], out: str) -> int:
    """Join what both nodes have recorded; return the exit status."""
    folders = [str(node.disk / out) for node in nodes]
    return main(["join", *folders, "--out", str(nodes[0].disk.parent / out)])


def shows_rank_1(folder: str, capsys: pytest.CaptureFixture[str]) -> bool:
    """Return whether a recording names the rank on which a gradient was planted."""
    shutil.copytree(folder, f"{folder}2")
    assert main(["compare", f"{folder}2", folder]) == 1
    ranks = "rank 1 (node1, cpu) and rank 0 (node0, cpu)"
    divergent = f"reduced_grad of weight in the candidate: {ranks} hold different bits"
    return divergent in capsys.readouterr().out


def test_a_rank_of_another_node_is_named(
    nodes: list[Node], capsys: pytest.CaptureFixture[str]
) -> None:
    """What nodes without a common disk have recorded is joined, and shows the defect of one."""
    for text in record(nodes, "wrong", "planted"):
        assert text.endswith("status 0"), text
    assert joined(nodes, "wrong") == 0
    assert shows_rank_1(str(nodes[0].disk.parent / "wrong"), capsys)


def test_nodes_that_share_no_folder_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that waits elsewhere says so in the store of the launch, and nobody waits on."""
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=20))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    monkeypatch.setattr(launch_folder, "NOTICE_SECONDS", 0.0)
    monkeypatch.setattr(launch_folder, "UNSEEN_SECONDS", 0.2)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    first, second = (Launch("torchrun", r, 2, r, 2, "127.0.0.1", "of a test") for r in range(2))
    Arrivals(second).announce()
    rendezvous = LaunchRendezvous(first)
    try:
        with pytest.raises(ConnectionError) as refused:
            rendezvous.wait(lambda: [1], lambda _: "rank 1", lambda _: None)
    finally:
        rendezvous.close()
    text = str(refused.value)
    assert f"rank 1 on {socket.gethostname()}" in text
    assert "set TMPDIR to a folder on a shared disk" in text


def test_a_process_that_is_late_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has announced nothing, so that the whole time is its own."""
    monkeypatch.setattr(launch_folder, "NOTICE_SECONDS", 0.0)
    monkeypatch.setattr(launch_folder, "UNSEEN_SECONDS", 0.0)
    monkeypatch.setattr(launch_folder, "MEET_SECONDS", 0.3)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rendezvous = LaunchRendezvous(Launch("Slurm", 0, 2, 0, 2, "127.0.0.1", "of a test"))
    try:
        with pytest.raises(ConnectionError, match="expected rank 1 within"):
            rendezvous.wait(lambda: [1], lambda _: "rank 1", lambda _: None)
    finally:
        rendezvous.close()


@pytest.mark.nightly
def test_a_job_of_slurm_joins_what_its_nodes_record(
    nodes: list[Node], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the script of the page, whose tasks run on nodes without a shared disk."""
    (tmp_path / "loop.py").write_text(LOOP)
    job = subprocess.run(
        [ROOT / "docs" / "examples" / "record-slurm.sh", "out", "loop.py", "planted"],
        cwd=tmp_path,
        env=nodes[0].variables() | stand_in_for_slurm(nodes, tmp_path / "bin"),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert job.returncode == 0, job.stdout + job.stderr
    assert "joined: 2 ranks of 2 folders" in job.stdout
    assert shows_rank_1(str(tmp_path / "out" / "joined"), capsys)


@pytest.mark.nightly
def test_a_node_that_dies_ends_the_other(
    nodes: list[Node], capsys: pytest.CaptureFixture[str]
) -> None:
    """What both have recorded until then is joined, and does not look whole."""
    first, second = record(nodes, "died", "killed")
    assert second.endswith("status -9"), second
    assert first.endswith("status 1"), first
    assert joined(nodes, "died") == 0
    ended = "rank 1 (node1, cpu) ended after step 2, and has not said why"
    assert ended in capsys.readouterr().out


@pytest.mark.nightly
def test_a_node_that_hangs_is_named(nodes: list[Node]) -> None:
    """By the other one, with its host, after the time that collectives wait."""
    words = [sys.executable, "-m", "pytest_precision", "record", "--watch", "--", "loop.py"]
    first, second = on_both([node.command([*words, "hangs"]) for node in nodes], nodes)
    absent = "after step 3 but got none of rank 1 (node1, cpu); it has ended"
    assert absent in first
    assert first.endswith("status 1"), first
    assert second.endswith("status 1"), second
    assert "none of rank 0 (" in second
    assert "rank 1 (" not in second


@pytest.mark.nightly
def test_a_slow_network_changes_nothing(nodes: list[Node]) -> None:
    """No bit and no message, where packets wait for a tenth of a second and more."""
    for node in nodes:
        slow_down(node, "256kbit")
    for text in record(nodes, "slow"):
        assert text.endswith("status 0"), text
    assert all(delayed_packets(node) > 10 for node in nodes)
    assert joined(nodes, "slow") == 0


@pytest.mark.nightly
def test_a_full_disk_names_rank_and_host(nodes: list[Node]) -> None:
    """That of one node ends the whole run."""
    common, disk = nodes[1].common, nodes[1].disk
    small = f"mount -t tmpfs -o size=60k none {common} && cp {disk}/loop.py {common}"
    first, second = record(nodes, "full", mount=small)
    assert second.endswith("status 2"), second
    room = f"expected room for a recording in full (rank 1 on {nodes[1].host})"
    assert room in second
    assert first.endswith("status 1"), first


@pytest.mark.nightly
def test_another_clock_changes_nothing(nodes: list[Node]) -> None:
    """Neither what is recorded nor whether it can be joined."""
    for text in record(nodes, "ahead", clock=1_000_000):
        assert text.endswith("status 0"), text
    assert joined(nodes, "ahead") == 0
