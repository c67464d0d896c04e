"""No file is replaced that this package did not make."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_precision._destination import Destination, NotReplaceableError

OURS, THEIRS = "ours, of an earlier run", "of another tool"


def is_ours(head: bytes) -> bool:
    return head.startswith(b"ours")


def their_file(place: Path) -> None:
    place.write_text(THEIRS)


def link_to_their_file(place: Path) -> None:
    their_file(place.with_name("theirs"))
    place.symlink_to("theirs")


def empty_file(place: Path) -> None:
    place.touch()


def dangling_link(place: Path) -> None:
    place.symlink_to("nothing")


def state(folder: Path) -> dict[str, tuple[str, bytes]]:
    """Return what is in a folder: links by their target, files by their bytes."""
    return {
        path.name: (os.readlink(path), b"")
        if path.is_symlink()
        else ("", path.read_bytes() if path.is_file() else b"")
        for path in folder.iterdir()
    }


@pytest.mark.parametrize("make", [their_file, link_to_their_file, empty_file, dangling_link])
def test_what_another_tool_made_stays(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Each file and link stays as it was to the last byte, and no further file is left.

    An empty file is somebody's, too, and a link to nothing is one that somebody made. The message
    names the path and what to do; `force` replaces, and writes through a link.
    """
    place = tmp_path / "out.json"
    make(place)
    before = state(tmp_path)
    with pytest.raises(NotReplaceableError, match=r"but got .*out\.json, .*; move it away, or"):
        Destination(place, is_ours).put("new")
    assert state(tmp_path) == before
    was_link = place.is_symlink()
    Destination(place, is_ours, force=True).put("new")
    assert (place.read_text(), place.is_symlink()) == ("new", was_link)


@pytest.mark.parametrize("kind", ["new", "ours", "link"])
def test_what_this_package_made_is_replaced(tmp_path: Path, kind: str) -> None:
    """A new file is made, an earlier one of ours replaced, and a link to ours stays a link."""
    place = tmp_path / "out.json"
    if kind == "link":
        place.symlink_to("last.json")
    if kind != "new":
        place.resolve().write_text(OURS)
    Destination(place, is_ours).put("ours, new")
    assert (place.read_text(), place.is_symlink()) == ("ours, new", kind == "link")
    assert len([*tmp_path.iterdir()]) == 1 + (kind == "link")


@pytest.mark.parametrize("force", [None, False, True])
def test_only_regular_files_are_replaced(tmp_path: Path, force: bool | None) -> None:
    """Folders and pipes stay, with `force`, too; a pipe is not waited for."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        with pytest.raises(NotReplaceableError, match=f"expected the path of a file but .*{name}"):
            Destination(tmp_path / name, is_ours, force).put("new")
    assert sorted(state(tmp_path)) == ["folder", "pipe"]
    assert (tmp_path / "folder").is_dir()


@pytest.mark.parametrize("name", ["rank0.json", "new", "sub/new"])
def test_nothing_is_written_into_a_recording(tmp_path: Path, name: str) -> None:
    """With `force`, neither, nor by way of a link to its folder; another recording.json is none."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "rank0.json").write_text("{}")
    manifest = tmp_path / "recording.json"
    manifest.write_text('{"format": 2, "command": []}')
    (tmp_path / "link").symlink_to(tmp_path)
    before = state(tmp_path)
    for place in (tmp_path / name, tmp_path / "link" / name):
        with pytest.raises(NotReplaceableError, match="within the recording"):
            Destination(place, is_ours, force=True).put("new")
    assert state(tmp_path) == before
    manifest.write_text('{"sounds": []}')
    Destination(tmp_path / name, is_ours, force=True).put("new")


MEANWHILE = """
import errno, os, pathlib, sys
from pytest_precision._destination import Destination

def audited(event, about):
    if event == "os.link":
        if kind == "no links": raise OSError(errno.EPERM, "no hard links")
        pathlib.Path("out").write_text(kind)

kind = sys.argv[1]
sys.addaudithook(audited)
Destination(pathlib.Path("out"), lambda head: head.startswith(b"ours")).put("ours, new")
"""


@pytest.mark.parametrize(
    ("kind", "status", "content"),
    [
        ("theirs", 1, "theirs"),
        ("ours, of another run", 0, "ours, new"),
        ("no links", 0, "ours, new"),
    ],
)
def test_a_file_that_is_made_meanwhile(
    tmp_path: Path, kind: str, status: int, content: str
) -> None:
    """What another tool makes between look and rename stays; what we made is replaced.

    Where a file system has no hard links, a new file is made all the same.
    """
    done = subprocess.run(
        [sys.executable, "-c", MEANWHILE, kind], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == status, done.stderr
    assert ("NotReplaceableError" in done.stderr) == bool(status)
    assert state(tmp_path) == {"out": ("", content.encode())}


def test_temporary_names_of_others_stay(tmp_path: Path) -> None:
    """A temporary file takes a name that is free, and goes when the block fails."""
    taken = tmp_path / f"out.partial{os.getpid()}-0"
    taken.write_text(THEIRS)
    Destination(tmp_path / "out", is_ours).put("ours")
    assert {name: held for name, (_, held) in state(tmp_path).items()} == {
        taken.name: THEIRS.encode(),
        "out": b"ours",
    }
    with pytest.raises(ZeroDivisionError), Destination(tmp_path / "new", is_ours).placed():
        raise ZeroDivisionError
    assert sorted(state(tmp_path)) == ["out", taken.name]


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    """The error has the name that was asked for, and none of a temporary file."""
    place = tmp_path / "missing" / "out"
    with pytest.raises(FileNotFoundError) as failed:
        Destination(place, is_ours).put("new")
    assert (failed.value.errno, failed.value.filename) == (errno.ENOENT, str(place))


def test_only_what_may_be_replaced_is_removed(tmp_path: Path) -> None:
    """A file of another tool stays, and none is no error."""
    place = tmp_path / "out"
    Destination(place, is_ours).remove()
    place.write_text(THEIRS)
    with pytest.raises(NotReplaceableError):
        Destination(place, is_ours).remove()
    assert place.read_text() == THEIRS
    place.write_text(OURS)
    Destination(place, is_ours).remove()
    assert not place.exists()
