"""What a run has recorded that did not finish is compared, and never passes."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from pytest_precision import RankError
from pytest_precision.__main__ import main
from pytest_precision.options import Settings
from pytest_precision.plugin.resources import Resources
from pytest_precision.ranks.needs import Needs

KILLED = """
if step == 3 and os.environ.get("RANK") == "1":
    os.kill(os.getpid(), 9)
"""

PLANTED = """
if step == 1:
    model.module[0].weight.grad[0, 0] += 1e-3 * dist.get_rank()
"""

HANGING = """
if step == 3 and os.environ.get("RANK") == "1":
    import time
    time.sleep(1e6)
"""


def record_on_node(folder: str) -> int:
    """Record on this rank, as if its node had a disk of its own."""
    words = ["--steps", "5", "--", "train.py", "0.01", "9"]
    return main(["record", "--out", f"{folder}/node{os.environ['RANK']}", *words])


def with_defects(folder: Path, *defects: str) -> None:
    """Put code into the loop, between its backward and its update."""
    script = folder / "train.py"
    lines = "".join(f"    {line}\n" for defect in defects for line in defect.splitlines())
    script.write_text(
        script.read_text().replace("    torch.nn.utils", f"{lines}    torch.nn.utils")
    )


@pytest.fixture
def two_ranks(in_folder: Path, resources: Resources) -> Callable[..., list[Path]]:
    """Record on two nodes with disks of their own, and return their folders."""

    def recorded(name: str, *, seconds: float = 120, fails: bool = False) -> list[Path]:
        (in_folder / name).mkdir()
        ranks = resources.ranks(Settings(timeout=seconds, device="cpu"))
        words = str(in_folder / name)
        if fails:
            with pytest.raises(RankError):
                ranks.run(2, record_on_node, words, needs=Needs(launched=True))
        else:
            assert ranks.run(2, record_on_node, words, needs=Needs(launched=True)) == [0, 0]
        return [in_folder / name / f"node{rank}" for rank in range(2)]

    return recorded


def test_a_killed_rank_is_compared_until_it_ended(
    two_ranks: Callable[..., list[Path]], in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its steps agree until then, which is no pass; and a defect in them is found all the same."""
    assert main(["join", *map(str, two_ranks("whole")), "--out", "a"]) == 0
    with_defects(in_folder, KILLED)
    folders = two_ranks("killed", fails=True)
    assert main(["join", *map(str, folders), "--out", "b"]) == 0
    ended = f"rank 1 ({socket.gethostname()}, cpu) ended after step 3, and has not said why"
    assert ended in capsys.readouterr().out
    assert main(["compare", "b", "a"]) == 2
    said = capsys.readouterr().out
    assert f"error: in the candidate, {ended}" in said
    assert "compared until step 3, where both agree" in said
    with_defects(in_folder, PLANTED)
    folders = two_ranks("wrong", fails=True)
    assert main(["join", *map(str, folders), "--out", "c"]) == 0
    assert main(["compare", "c", "a"]) == 1
    said = capsys.readouterr().out
    assert "rank 1 and rank 0 hold different bits at step 2" in said
    assert ended in said


@pytest.mark.nightly
def test_a_hang_that_a_time_limit_ends_is_compared_until_then(
    two_ranks: Callable[..., list[Path]], in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other rank waits in vain, and both are killed."""
    assert main(["join", *map(str, two_ranks("whole")), "--out", "a"]) == 0
    with_defects(in_folder, HANGING)
    folders = two_ranks("hung", seconds=15, fails=True)
    assert main(["join", *map(str, folders), "--out", "b"]) == 0
    assert main(["compare", "b", "a"]) == 2
    assert "ended after step 3, and has not said why" in capsys.readouterr().out


@pytest.fixture
def small_disk(in_folder: Path) -> Iterator[Path]:
    """A file system of 96 KiB, which the user root can mount."""
    place = in_folder / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=96k", "none", str(place)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this user cannot mount a small file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_leaves_the_steps_before(
    record: Callable[..., Path], small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They agree with those of a run that had room, whatever the last write has left."""
    record("a", script=("train.py", "0.01", "40"))
    with pytest.raises(SystemExit) as ended:
        record("small/b", "--steps", "40", script=("train.py", "0.01", "40"))
    assert ended.value.code == 2
    assert main(["compare", "small/b", "a"]) == 2
    said = capsys.readouterr().out
    assert "ended after step" in said
    assert "its disk is full" in said
    assert "where both agree" in said


def test_files_of_nodes_that_lie_in_one_folder_are_whole(
    two_ranks: Callable[..., list[Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever has put them there."""
    folders = two_ranks("whole")
    assert main(["join", *map(str, folders), "--out", "a"]) == 0
    for folder in folders:
        shutil.copytree(folder, "b", dirs_exist_ok=True)
    assert main(["compare", "b", "a"]) == 0
    capsys.readouterr()
    seal = folders[1] / "seal1.json"
    content = json.loads(seal.read_text())
    early = datetime.now(timezone.utc) - timedelta(hours=3)
    content["origin"] |= {"host": "node-b", "date": early.isoformat(timespec="seconds")}
    seal.write_text(json.dumps(content))
    assert main(["join", *map(str, folders), "--out", "c"]) == 0
    here = socket.gethostname()
    assert f"the clock of node-b is 3.0 hours behind that of {here}" in capsys.readouterr().out
    content["origin"]["release"] = "0.0.9"
    seal.write_text(json.dumps(content))
    with pytest.raises(SystemExit):
        main(["join", *map(str, folders), "--out", "d"])
    said = " ".join(capsys.readouterr().err.split())
    assert "of release 0.0.9 on rank 1 (node-b); install one release on all nodes" in said
