"""A stranger's sidecar is checked whole, and nothing is made of a wrong one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from pytest_precision.__main__ import main

Output = pytest.CaptureFixture[str]


def sidecar() -> dict[str, Any]:
    """A run of one step and two ranks: halves of a weight, a loss of each, and bytes of a flag."""
    halves = [
        {"kind": "master", "name": "w", "key": "half", "rank": 0, "shape": [4, 2], "start": [0, 0]},
        {"kind": "master", "name": "w", "key": "half", "rank": 1, "shape": [4, 2], "start": [2, 0]},
    ]
    spans = [
        {"kind": "exp_avg", "name": "w", "key": "span", "rank": rank, "flat": True}
        | {"shape": [4, 2], "start": [4 * rank]}
        for rank in (0, 1)
    ]
    flag = {"kind": "flag", "name": "é", "key": "bytes", "dtype": "bfloat16", "piece": [1, 2]}
    loss = {"kind": "loss", "name": "m", "key": "one", "local": True}
    return {
        "sidecar": 1,
        "world_size": 2,
        "environment": {"jax": "1"},
        "unobservable": {"grad": "no"},
        "moments": [
            {"step": 0, "phase": "init", "tensors": [*halves, flag]},
            {"step": 1, "phase": "forward_backward", "tensors": [loss, loss | {"rank": 1}]},
            {"step": 1, "phase": "optimizer_step", "tensors": [*halves, *spans]},
        ],
    }


def put(folder: Path, content: dict[str, Any] | bytes) -> None:
    """Write the two files of `sidecar`."""
    tensors = {
        "half": torch.ones(2, 2),
        "span": torch.ones(4),
        "bytes": torch.ones(4, dtype=torch.uint8),
        "one": torch.tensor(1.0),
        "ints": torch.ones(2, 2, dtype=torch.int32),
    }
    save_file(tensors, folder / "hook.safetensors")
    if isinstance(content, dict):
        content = json.dumps(content, ensure_ascii=False).encode()
    (folder / "hook.json").write_bytes(content)


def refusal(capsys: Output) -> str:
    """Import into a new folder; return the error, after which nothing is there but the files."""
    before = sorted(Path().rglob("*"))
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["import", "hook.safetensors", "--out", "some/theirs"])
    assert sorted(Path().rglob("*")) == before
    said = capsys.readouterr().err
    assert "expected a recording to import but got hook.safetensors: hook.json: " in said
    return said


def test_what_is_right_is_imported(in_folder: Path, capsys: Output) -> None:
    """Pieces of both forms, bytes of a dtype, names of every language; an empty folder, too."""
    put(in_folder, sidecar())
    (in_folder / "empty").mkdir()
    for out in ("new/theirs", "empty"):
        assert main(["import", "hook.safetensors", "--out", out]) == 0
        assert not [*Path(out).glob(".*")]
    assert main(["compare", "new/theirs", "empty", "--criterion=grad=unchecked(reason='no')"]) == 1
    assert "vacuous" in capsys.readouterr().out


FIRST = ("moments", 0, "tensors", 0)

FLAG = ("moments", 0, "tensors", 2)

SPAN = ("moments", 2, "tensors", 2)


@pytest.mark.parametrize(
    ("where", "value", "words"),
    [
        ((), [], "the sidecar to be an object"),
        (("sidecar",), True, "sidecar to be a whole number"),
        (("kind",), "x", "the sidecar to have keys of"),
        (("world_size",), 65536, "world_size to be at most 9, the number of tensors"),
        (("world_size",), 1 << 17, "world_size to be a whole number from 1 to 65536"),
        (("world_size",), 2.0, "world_size to be a whole number"),
        (("world_size",), 1, r"moments\[0\].tensors\[1\].rank to be a whole number from 0 to 0"),
        (("environment",), {"a": 1}, "environment to be a text"),
        (("unobservable",), [], "unobservable to be an object"),
        (("moments",), {}, "moments to be a list"),
        (("moments", 1), [], r"moments\[1\] to be an object"),
        (("moments", 1, "rank"), 1, r"moments\[1\] to be an object of step, phase, tensors"),
        (("moments", 1, "step"), "1", r"moments\[1\].step to be a whole number"),
        (("moments", 1, "step"), 1 << 20, "at most 36864 moments of all ranks for 9 tensors"),
        (("moments", 1, "step"), 1 << 70, r"moments\[1\].step to be a whole number"),
        (("moments", 1, "phase"), "backward", r"'backward' at step 1, moments\[1\]"),
        (("moments", 1, "phase"), None, r"moments\[1\].phase to be a text"),
        (("moments", 1, "tensors"), {}, r"moments\[1\].tensors to be a list"),
        (FIRST, 3, r"moments\[0\].tensors\[0\] to be an object"),
        ((*FIRST, "lokal"), True, r"moments\[0\].tensors\[0\] to have keys of .* got 'lokal'"),
        ((*FIRST, "kind"), None, r"tensors\[0\].kind to be a text"),
        ((*FIRST, "name"), 1, r"tensors\[0\].name to be a text"),
        ((*FIRST, "key"), "none", r"no tensor 'none', which moments\[0\].tensors\[0\].key names"),
        ((*FIRST, "key"), [], r"tensors\[0\].key to be a text"),
        ((*FIRST, "rank"), -1, r"tensors\[0\].rank to be a whole number from 0 to 1"),
        ((*FIRST, "rank"), True, r"tensors\[0\].rank to be a whole number from 0 to 1"),
        ((*FIRST, "rank"), 1, r"master of 'w' of rank 1 again, moments\[0\].tensors\[1\]"),
        ((*FIRST, "local"), "no", r"tensors\[0\].local to be true or false but got 'no'"),
        ((*FIRST, "flat"), 1, r"tensors\[0\].flat to be true or false"),
        ((*FIRST, "flat"), True, r"tensors\[0\].start to be the place of a piece"),
        ((*FIRST, "start"), [], r"tensors\[0\].start to be the place of a piece"),
        ((*FIRST, "start"), [3, 0], r"tensors\[0\].start to be the place of a piece"),
        ((*FIRST, "start"), [0, -1], r"the start of a piece in moments\[0\].tensors\[0\].start"),
        ((*FIRST, "start"), {"0": 0}, r"tensors\[0\].start to be a list"),
        ((*FIRST, "shape"), [4], r"tensors\[0\].start to be the place of a piece"),
        ((*FIRST, "shape"), [1 << 40, 1 << 40], r"in moments\[0\].tensors\[0\].shape, elements"),
        ((*FIRST, "shape"), "4x2", r"tensors\[0\].shape to be a list"),
        ((*FIRST, "piece"), [4], r"piece to be the shape of the tensor, \[2, 2\], but got \[4\]"),
        ((*SPAN, "start"), [], r"tensors\[2\].start to be the place of a piece"),
        ((*SPAN, "start"), [5], r"tensors\[2\].start to be the place of a piece"),
        ((*SPAN, "shape"), [3], r"tensors\[2\].start to be the place of a piece"),
        ((*FLAG, "dtype"), "nn", r"tensors\[2\].dtype to be a dtype that this torch has"),
        ((*FLAG, "dtype"), "__name__", r"tensors\[2\].dtype to be a dtype that this torch has"),
        ((*FLAG, "dtype"), ["bool"], r"tensors\[2\].dtype to be a text"),
        ((*FLAG, "piece"), [3], r"tensors\[2\].piece to fill the 4 bytes of the tensor"),
        ((*FLAG, "key"), "ints", r"tensors\[2\].dtype to be that of the tensor, or its bytes"),
    ],
)
def test_a_field_that_cannot_be_is_named(
    in_folder: Path, capsys: Output, where: tuple[Any, ...], value: Any, words: str
) -> None:
    """By its path in the file, with exit status 2; and nothing is made."""
    content: Any = sidecar()
    if not where:
        content = value
    else:
        *path, last = where
        held = content
        for step in path:
            held = held[step]
        held[last] = value
    put(in_folder, json.dumps(content).encode())
    assert re.search(words, refusal(capsys))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda held: b"", "line 1 column 1"),
        (lambda held: held[: held.index(b'"moments"')], "line 1 column"),
        (
            lambda held: b"\n\n" + held.replace("é".encode(), b"\xe9"),
            "UTF-8 but got byte 0xe9 in line 3",
        ),
        (lambda held: "\ufeff".encode() + held, "BOM"),
        (
            lambda held: held.replace(b'"world_size": 2', b'"world_size": NaN'),
            "JSON has but got NaN",
        ),
        (lambda held: held.replace(b'"world_size": 2', b'"world_size": 1e999'), "world_size to be"),
        (lambda held: held.replace(b'"world_size": 2', b'"world_size": ' + b"9" * 5000), "4300"),
        (
            lambda held: held.replace(b'"sidecar": 1', b'"sidecar": 1, "sidecar": 1'),
            "'sidecar' twice",
        ),
        (
            lambda held: held.replace(b'"flat": true', b'"flat": true, "flat": false'),
            "'flat' twice",
        ),
        (lambda held: b"[" * 100_000, "recursion"),
    ],
)
def test_what_is_no_json_is_refused(
    in_folder: Path, capsys: Output, change: Callable[[bytes], bytes], words: str
) -> None:
    """Cut, in another encoding, with numbers or keys that JSON has not, or too deep."""
    put(in_folder, change(json.dumps(sidecar(), ensure_ascii=False).encode()))
    assert words in refusal(capsys)


def test_an_import_that_cannot_be_finished_leaves_nothing(
    in_folder: Path, capsys: Output, files_of_at_most: Callable[[int], None]
) -> None:
    """In a new folder and in an empty one."""
    content = sidecar()
    many = [{"kind": "buffer", "name": f"{n}", "key": "one"} for n in range(100)]
    content["moments"][0]["tensors"] += many  # which takes more than that
    put(in_folder, content)
    (in_folder / "empty").mkdir()
    files_of_at_most(4096)
    for out in ("new", "empty"):
        with pytest.raises(SystemExit, match=r"^2$"):
            main(["import", "hook.safetensors", "--out", out])
    assert sorted(path.name for path in in_folder.iterdir()) == [
        "empty",
        "hook.json",
        "hook.safetensors",
        "train.py",
    ]
    assert not [*Path("empty").iterdir()]
