"""Nodes that share no disk record into folders of their own, which `join` makes one recording."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_precision.__main__ import main
from pytest_precision.options import Settings
from pytest_precision.plugin.resources import Resources
from pytest_precision.ranks.needs import Needs
from pytest_precision.trace.sealed import seals

STEPS = ("--steps", "2", "--", "train.py", "0.01", "9")


def record_on_nodes(folder: str) -> int:
    """Record on this rank, as if its node had a disk of its own."""
    return main(["record", "--out", f"{folder}/node{os.environ['RANK']}", *STEPS])


@pytest.fixture
def nodes(in_folder: Path, resources: Resources) -> Callable[[str], list[Path]]:
    """Record on two ranks, each into a folder of its own; return these."""

    def recorded(name: str) -> list[Path]:
        (in_folder / name).mkdir()
        ranks = resources.ranks(Settings(timeout=120, device="cpu"))
        needs = Needs(launched=True)
        assert ranks.run(2, record_on_nodes, str(in_folder / name), needs=needs) == [0, 0]
        return [in_folder / name / f"node{rank}" for rank in range(2)]

    return recorded


def on_another_host(folder: Path, host: str, serial: str) -> None:
    """Have rank 1 say that it ran elsewhere."""
    path = folder / "rank1.json"
    index = json.loads(path.read_text())
    path.write_text(
        json.dumps(index | {"place": index["place"] | {"host": host, "serial": serial}})
    )
    seal = folder / "seal1.json"
    seal.write_text(json.dumps(json.loads(seal.read_text()) | {"files": seals(folder, 1)}))


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of each file in a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def refused(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """Return why a command is refused, in one line."""
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words)])
    assert ended.value.code == 2
    return " ".join(capsys.readouterr().err.split())


def test_nodes_are_joined(
    nodes: Callable[[str], list[Path]],
    resources: Resources,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The whole has the bits of a recording on a shared disk, and the nodes' folders stay."""
    folders = nodes("a")
    ranks = resources.ranks(Settings(timeout=120, device="cpu"))
    words = ("record", "--out", "shared", *STEPS)
    assert ranks.run(2, main, words, needs=Needs(launched=True)) == [0, 0]
    before = [contents(folder) for folder in folders]
    assert main(["join", *map(str, folders), "--out", "whole"]) == 0
    assert "whole: 2 ranks of 2 folders" in capsys.readouterr().out
    assert [contents(folder) for folder in folders] == before
    assert main(["compare", "whole", "shared"]) == 0
    assert {path.name for path in Path("whole").iterdir()} == {
        path.name for path in Path("shared").iterdir()
    }


def test_one_node_alone_names_the_other_ranks(
    nodes: Callable[[str], list[Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever it is, the message says what to do with both."""
    first, second = nodes("a")
    for node, problem in (
        (first, "which rank 1 of 2 has not finished"),
        (second, "which has no recording.json"),
    ):
        text = refused(capsys, "compare", node, first)
        assert problem in text
        assert "pytest_precision join DIR ... --out DIR" in text
    assert "no file of rank 1 in" in refused(capsys, "join", first, "--out", "whole")
    assert "recording.json, which rank 0 writes" in refused(
        capsys, "join", second, "--out", "whole"
    )


def test_what_is_no_launch_is_refused(
    nodes: Callable[[str], list[Path]], in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ranks of two launches, a rank twice, one that has not finished, and damage."""
    first, second = nodes("a")
    _, other = nodes("b")
    out = ("--out", "whole")
    assert "which two launches recorded" in refused(capsys, "join", first, other, *out)
    assert "rank 1 in" in refused(capsys, "join", first, second, other, *out)
    tensors = second / "rank1.bin"
    changed = bytearray(tensors.read_bytes())
    changed[-1] ^= 1
    tensors.write_bytes(changed)
    assert "rank1.bin as it was written" in refused(capsys, "join", first, second, *out)
    (second / "seal1.json").unlink()
    assert "which has not finished" in refused(capsys, "join", first, second, *out)
    shutil.rmtree(second)
    assert "a folder but got" in refused(capsys, "join", first, second, *out)
    assert list(Path("whole").iterdir()) == []
    assert [path.name for path in in_folder.iterdir() if path.name.startswith(".")] == []


def test_a_rank_is_named_with_its_host(
    nodes: Callable[[str], list[Path]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where the ranks of a side ran on several hosts; with its GPU if asked."""
    folders = nodes("a")
    assert main(["join", *map(str, folders), "--out", "one"]) == 0
    on_another_host(folders[1], "node-b", "GPU-1234")
    assert main(["join", *map(str, folders), "--out", "two"]) == 0
    capsys.readouterr()
    assert main(["compare", "two", "one", "--ranks"]) == 0
    text = capsys.readouterr().out
    here = socket.gethostname()
    assert f"  candidate: rank 1 (node-b, cpu) GPU-1234\n  reference: rank 0 ({here}, cpu)" in text
    Path("train.py").write_text(
        Path("train.py").read_text().replace("step == 3:", "step == 1 and dist.get_rank():")
    )
    folders = nodes("b")
    on_another_host(folders[1], "node-b", "GPU-1234")
    assert main(["join", *map(str, folders), "--out", "wrong"]) == 0
    assert main(["compare", "wrong", "one", "--brief"]) == 1
    both = f"rank 1 (node-b, cpu) and rank 0 ({here}, cpu) hold different bits"
    assert both in capsys.readouterr().out
