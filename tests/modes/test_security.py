"""Who may give orders to the processes of a launch: whoever can read this user's files."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import launches
import psutil
import pytest

from pytest_precision.errors import RefusedError
from pytest_precision.options import Settings
from pytest_precision.plugin.collection import Collection
from pytest_precision.plugin.launched import Process
from pytest_precision.ranks.launch.launch import Launch
from pytest_precision.ranks.launch.launch_folder import Address, LaunchRendezvous

SUITE = """
import os
import time
from pathlib import Path

import pytest


def works(folder):
    Path(folder, "busy" + os.environ["RANK"]).touch()
    while not Path(folder, "enough").exists():
        time.sleep(0.05)
    return True


@pytest.mark.world_size(2)
def test_works(ranks):
    assert ranks.run(works, os.getcwd()) == [True, True]
"""

STRANGER = """\
import socket, sys
from pathlib import Path

address, bomb = sys.argv[1], Path(sys.argv[2]).read_bytes()
for port in map(int, sys.argv[3:]):
    for words in (bomb, len(bomb).to_bytes(4, "big") + bomb, b"\\0\\0\\0\\x0b#CHALLENGE#" + bomb):
        heard = b""
        try:
            with socket.create_connection((address, port), 2) as line:
                line.settimeout(2)
                line.sendall(words)
                while said := line.recv(4096):
                    heard += said
                    line.sendall(words)
        except OSError:
            pass
        print(port, heard[:15], len(heard))
"""

HOST, GUEST = "10.213.77.1", "10.213.77.2"


class Bomb:
    """What leaves a file where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (os.fspath(self.file),)


@pytest.fixture
def launch() -> Launch:
    return Launch("Slurm", 1, 2, 0, 1, "localhost", "of a test")


@pytest.fixture
def rendezvous(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LaunchRendezvous]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rendezvous = LaunchRendezvous(launch)
    rendezvous.register(Address.here(launch, "127.0.0.1", 4711, b"secret"))
    yield rendezvous
    rendezvous.close()
    assert list(tmp_path.iterdir()) == []


def test_the_key_is_in_a_file_of_this_user_alone(rendezvous: LaunchRendezvous) -> None:
    """Nobody else may look into the folder, nor into the file."""
    [file] = rendezvous.folder.glob("rank1*")
    assert (rendezvous.folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    found = rendezvous.find(1)
    assert found is not None
    assert bytes.fromhex(found.key) == b"secret"
    assert found.key not in repr(found)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("open_folder", [False, True])
def test_another_user_cannot_read_the_key(launch: Launch, open_folder: bool) -> None:
    """Neither the folder nor the file lets him in."""
    rendezvous = LaunchRendezvous(launch)  # in a temporary folder that all users can enter
    rendezvous.register(Address.here(launch, "127.0.0.1", 4711, b"secret"))
    [file] = rendezvous.folder.glob("rank1*")
    other = {"user": 65534, "group": 65534, "extra_groups": [], "capture_output": True}
    try:
        if open_folder:
            rendezvous.folder.chmod(0o755)
        own = subprocess.run(["cat", file], capture_output=True)
        tried = subprocess.run(["cat", file], **other)
    finally:
        rendezvous.close()
    assert b"secret".hex().encode() in own.stdout
    assert tried.stdout == b""
    assert b"Permission denied" in tried.stderr


@pytest.mark.parametrize("kind", ["open", "link"])
def test_a_folder_that_others_have_prepared(
    launch: Launch, rendezvous: LaunchRendezvous, tmp_path: Path, kind: str
) -> None:
    """It is not taken: its name can be guessed."""
    rendezvous.close()
    if kind == "open":
        rendezvous.folder.mkdir()
        rendezvous.folder.chmod(0o777)
    else:
        (tmp_path / "own").mkdir(0o700)
        rendezvous.folder.symlink_to(tmp_path / "own")
    with pytest.raises(PermissionError, match=r"expected a folder that only user .* can enter"):
        LaunchRendezvous(launch)
    rendezvous.folder.rmdir() if kind == "open" else rendezvous.folder.unlink()
    shutil.rmtree(tmp_path / "own", ignore_errors=True)


def test_a_word_is_no_address(launch: Launch, rendezvous: LaunchRendezvous) -> None:
    """Who will hold no rank says why, and whoever asks for him hears it."""
    rendezvous.refuse("Traceback: planted")
    with pytest.raises(RefusedError, match=r"rank 1, process .* holds no rank: Traceback: planted"):
        rendezvous.find(1)
    assert rendezvous.find(0) is None


def test_a_word_of_an_earlier_launch_is_taken_back(
    launch: Launch, rendezvous: LaunchRendezvous
) -> None:
    """By whom it is of: where several nodes are started, names come again, and errors need not."""
    rendezvous.refuse("Traceback: mended since")
    Process(launch, Collection(Settings()))
    assert rendezvous.find(1) is None


# In both, strangers find the addresses that the launch listens at, and no others.
@pytest.fixture(params=["loopback", pytest.param("network namespace", marks=pytest.mark.nightly)])
def stranger(request: pytest.FixtureRequest) -> Iterator[tuple[str, list[str]]]:
    """The address at which strangers find this machine, and what begins their commands."""
    if request.param == "loopback":
        yield "127.0.0.1", []
        return
    name = f"precision{os.getpid()}"
    near, far = f"pa{os.getpid()}", f"pb{os.getpid()}"
    inside = ["ip", "netns", "exec", name]
    steps = [
        ["ip", "netns", "add", name],
        ["ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", name],
        ["ip", "addr", "add", f"{HOST}/30", "dev", near],
        ["ip", "link", "set", near, "up"],
        [*inside, "ip", "addr", "add", f"{GUEST}/30", "dev", far],
        [*inside, "ip", "link", "set", far, "up"],
    ]
    try:
        for step in steps:
            if not shutil.which("ip") or subprocess.run(step, capture_output=True).returncode:
                pytest.skip("this user cannot make a network namespace")
        yield HOST, inside
    finally:
        if shutil.which("ip"):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def test_strangers_run_nothing(tmp_path: Path, stranger: tuple[str, list[str]]) -> None:
    """Who knows the job and all ports that the launch listens at hears a challenge, and no more."""
    address, prefix = stranger
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "bomb").write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    (tmp_path / "stranger.py").write_text(STRANGER)
    # That plugin listens too.
    options = ("-p", "no:cacheprovider", "-p", "no:rerunfailures", "--precision-device=cpu")
    processes = [
        (command, {**variables, "MASTER_ADDR": address})
        for command, variables in launches.commands("Slurm on two nodes", *options)
    ]
    with launches.started(tmp_path, processes) as (session, running):
        until = time.monotonic() + launches.SECONDS
        while len(list(tmp_path.glob("busy*"))) < 2 and time.monotonic() < until:
            time.sleep(0.1)
        addresses = [address for process in running for address in listening(process)]
        job = int(processes[0][1]["SLURM_JOB_ID"])
        ports = [str(port) for _, port in addresses] + [str(16_384 + job * 31 % 16_384)]
        command = [*prefix, sys.executable, tmp_path / "stranger.py", address, tmp_path / "bomb"]
        tried = subprocess.run([*command, *ports], capture_output=True, text=True)
        (tmp_path / "enough").touch()
    assert session.statuses == [0, 0], session.output
    assert not (tmp_path / "exploded").exists()
    assert {address} == {address for address, _ in addresses}
    assert len(addresses) == 2, "the host's calls, and torch's store"
    said = [line.split(maxsplit=1)[1] for line in tried.stdout.splitlines()]
    assert len(said) == 3 * len(ports), tried
    assert all("#CHALLENGE#" in line or line == "b'' 0" for line in said), said
    assert any("#CHALLENGE#" in line for line in said), "somebody was asked"


def listening(process: psutil.Popen) -> list[tuple[str, int]]:
    """Where the process listens; its ranks are others."""
    found = process.net_connections("tcp")
    return [(c.laddr.ip, c.laddr.port) for c in found if c.status == psutil.CONN_LISTEN]
