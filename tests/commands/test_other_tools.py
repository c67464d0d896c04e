"""Files of other tools stay, byte for byte, whatever a command was told to write."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from pytest_precision.__main__ import main
from pytest_precision.exchange.export_files import find_sidecar

RecordFile = Callable[..., Path]
Output = pytest.CaptureFixture[str]

REFUSED = "expected a new file, or one that pytest-precision has made, but got"

THEIRS = b'{"precious": 1}'


def refused(capsys: Output, *words: str) -> str:
    """Run a command that ends with status 2, and return what it says."""
    with pytest.raises(SystemExit, match="2"):
        main([*words])
    return capsys.readouterr().err


def of_other_tools(*names: str) -> Callable[[], None]:
    """Write files of another tool; return a function that fails if one has changed."""
    for name in names:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(THEIRS)

    def stay() -> None:
        assert {name: Path(name).read_bytes() for name in names} == dict.fromkeys(names, THEIRS)

    return stay


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_export_replaces_exports_alone(record: RecordFile, capsys: Output) -> None:
    """Neither a file of another tool at its name nor one at its sidecar's is replaced.

    What it writes has names that begin with the whole name that was given, so that model.json and
    weights.v1.json beside them stay. Its own files are replaced, and those of others by `--force`.
    Nothing is written into a recording, not even by `--force`.
    """
    recording = record("mine", "--steps", "1")
    capsys.readouterr()
    stay = of_other_tools(
        "a.safetensors", "b.safetensors.json", "config.json", "weights.v1.json", "weights.v1"
    )
    for name, taken in (
        ("a.safetensors", "a.safetensors"),
        ("b.safetensors", "b.safetensors.json"),
    ):
        said = refused(capsys, "export", "mine", "--out", name)
        assert f"but got {taken}, which pytest-precision did not make; move it away, or" in said
        assert "replace it with --force" in said
    assert not Path("a.safetensors.json").exists()
    assert not Path("b.safetensors").exists()
    for name in ("config.safetensors", "weights.v1.2"):
        for _ in range(2):
            assert main(["export", "mine", "--out", name]) == 0
        assert json.loads(Path(f"{name}.json").read_text())["generator"] == "pytest-precision"
    stay()
    assert main(["export", "mine", "--out", "a.safetensors", "--force"]) == 0
    assert main(["import", "a.safetensors", "--out", "imported"]) == 0
    before = files_of(recording)
    for name in ("rank0.safetensors", "rank0.bin", "new"):
        words = ("export", "mine", "--out", f"mine/{name}", "--force")
        assert "within the recording" in refused(capsys, *words)
    assert files_of(recording) == before


def test_exports_of_before_are_known(record: RecordFile, capsys: Output) -> None:
    """A pair without a maker, whose sidecar has the suffix's place, is read and written again.

    Where there are two sidecars, the file says by its maker which is its own; a file of another
    tool beside two sidecars is refused, and one that is no sidecar is none of them.
    """
    record("mine", "--steps", "1")
    main(["export", "mine", "--out", "x.safetensors"])
    said = json.loads(Path("x.safetensors.json").read_text())
    del said["generator"]
    Path("x.json").write_text(json.dumps(said, indent=1) + "\n")
    Path("x.safetensors.json").unlink()
    save_file(load_file("x.safetensors"), "x.safetensors")
    assert main(["import", "x.safetensors", "--out", "again"]) == 0
    assert main(["compare", "again", "mine", "--brief"]) == 0
    assert main(["export", "mine", "--out", "x.safetensors"]) == 0
    assert find_sidecar(Path("x.safetensors")) == Path("x.safetensors.json")
    save_file(load_file("x.safetensors"), "x.safetensors")
    capsys.readouterr()
    assert "expected one sidecar of x.safetensors but got x.safetensors.json and x.json" in refused(
        capsys, "import", "x.safetensors", "--out", "third"
    )
    Path("x.json").write_bytes(THEIRS)
    assert find_sidecar(Path("x.safetensors")) == Path("x.safetensors.json")


def shown(folder: str) -> str:
    """Write a report.json of the first release, formatted by hand; return the folder's name."""
    cell = dict.fromkeys(("candidate", "reference", "workload", "criterion", "reason"), "x")
    cell |= {"nodeid": f"test_it.py::test_it[{folder}]", "outcome": "pass"}
    numbers = {"observations": 1, "bytes": 4, "seconds": 0.5, "axes": {}, "details": []}
    head = {"schema": 1, "finished": True, "planned": 1, "environment": {"world_sizes": [1]}}
    Path(folder).mkdir()
    content = {**head, "cells": [{**cell, **numbers}]}
    (Path(folder) / "report.json").write_text(json.dumps(content, indent=4))
    return folder


@pytest.mark.parametrize("taken", ["report.json", "report.html"])
def test_a_merge_replaces_reports_alone(in_folder: Path, capsys: Output, taken: str) -> None:
    """Neither file is written if one of them is of another tool; `--force` replaces it."""
    words = ("report", "merge", shown("a"), shown("b"), "--out", "all")
    stay = of_other_tools(f"all/{taken}", "all/notes.txt")
    said = refused(capsys, *words)
    assert f"--out=all: {REFUSED} all/{taken}, which" in said
    stay()
    assert sorted(path.name for path in Path("all").iterdir()) == sorted([taken, "notes.txt"])
    assert main([*words, "--force"]) == 0
    assert main([*words]) == 0
    assert Path("all/notes.txt").read_bytes() == THEIRS


def test_a_page_replaces_pages_alone(in_folder: Path, capsys: Output) -> None:
    """A page of another tool beside report.json stays; so does one that shows the words of ours."""
    words = ("report", "html", shown("a"))
    stay = of_other_tools("a/report.html")
    assert "but got a/report.html, which pytest-precision did not make" in refused(capsys, *words)
    stay()
    page = Path("a/report.html")
    page.write_text(
        '<!doctype html>\n<style></style>\n<meta name="generator" content="pytest-precision">'
    )
    before = page.read_bytes()
    refused(capsys, *words)
    assert page.read_bytes() == before
    assert main([*words, "--force"]) == 0
    assert main([*words]) == 0


@pytest.mark.parametrize("taken", ["report.json", "report.html"])
@pytest.mark.parametrize(
    "words",
    [
        ("compare", "none", "none"),
        ("diff",),
        ("bisect", "HEAD~1", "HEAD"),
    ],
)
def test_a_comparison_looks_first(
    in_folder: Path, capsys: Output, words: Sequence[str], taken: str
) -> None:
    """A folder of `--report` with a file of another tool ends it before anything is read or run."""
    stay = of_other_tools(f"out/{taken}")
    script = () if words[0] == "compare" else ("--", "train.py")
    said = refused(capsys, *words, "--report", "out", *script)
    assert f"--report=out: {REFUSED} out/{taken}, which" in said
    stay()


def test_a_comparison_replaces_reports_alone(record: RecordFile) -> None:
    """With `--force`, a file of another tool too; then both are ours, and replaced without."""
    record("mine", "--steps", "1")
    record("again", "--steps", "1")
    of_other_tools("out/report.json", "out/report.html")
    words = ["compare", "again", "mine", "--report", "out"]
    assert main([*words, "--force"]) == 0
    assert main(words) == 0
    assert "All cells passed" in Path("out/report.html").read_text("utf-8")
