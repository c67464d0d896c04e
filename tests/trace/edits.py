"""Edits of a valid recording: what a stranger, a disk or a careless copy makes of it."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash
from hypothesis import strategies as st

from pytest_precision.trace.sealed import signed

ORIGIN = "recording.json"

DEEP = "[" * 100_000 + "]" * 100_000

HOSTILE = st.one_of(
    st.sampled_from(
        [
            *(None, True, False, 0, 1, -1, -7, 1.0, 0.5, -0.0, float("nan"), float("inf")),
            *(1 << 31, 1 << 50, 1 << 62, 1 << 63, 1 << 80, -(1 << 40), -(1 << 62), 10**8, 10**400),
            *("", "x", "span", "chunk", "train", "triin", "float3:", "float64", "int8", "../x"),
            *("0" * 32, "\n::set-output name=a::b", "\ud800", "\x1b[2J"),
            *([], {}, [[]], [0] * 50, ["span", 1 << 50], ["span", -7], ["x", 0], {"": []}, "DEEP"),
        ]
    ),
    st.integers(),
    st.floats(),
    st.text(max_size=4),
)


def text_of(value: Any) -> str:
    """Return JSON, with the text DEEP as a list nested beyond what a parser can follow."""
    return json.dumps(value).replace('"DEEP"', DEEP)


def sealed_again(folder: Path, name: str) -> None:
    """Give a changed file a right size and digest: nobody's damage, but a stranger's intent."""
    path = folder / ORIGIN
    try:
        manifest = json.loads(path.read_text())
        manifest.pop("digest", None)
        if name != ORIGIN:
            content = (folder / name).read_bytes()
            manifest["files"][name] = [len(content), xxhash.xxh3_128_hexdigest(content)]
        path.write_text(json.dumps(signed(manifest)))
    except (OSError, ValueError, RecursionError, AttributeError, TypeError):
        pass  # no JSON object is left of it, or no file


def equivalent(before: Path, after: Path, name: str) -> bool:
    """Return whether a file still says the same, of `recording.json` as JSON."""
    mine, theirs = after / name, before / name
    if mine.is_symlink() or not mine.is_file():
        return False
    own, other = mine.read_bytes(), theirs.read_bytes()
    if name != ORIGIN or own == other:
        return own == other
    try:
        found = [json.dumps(json.loads(text), sort_keys=True) for text in (own, other)]
    except (ValueError, RecursionError):
        return False
    return found[0] == found[1]


def _edit_value(draw: Callable[[Any], Any], path: Path) -> str:
    """Change one place of a JSON file, at any depth."""
    root = [json.loads(path.read_text())]
    inside, key = root, 0
    while inside[key] and isinstance(inside[key], (list, dict)) and draw(st.integers(0, 9)):
        inside = inside[key]
        keys = [*inside] if isinstance(inside, dict) else range(len(inside))
        key = draw(st.sampled_from(keys))
    how = draw(st.sampled_from(["replace", "replace", "replace", "add", "type", *MOVES]))
    value = inside[key]
    if how == "replace":
        inside[key] = draw(HOSTILE)
    elif how == "add":
        whole = isinstance(value, (int, float))
        inside[key] = (
            value + draw(st.sampled_from([-64, -1, 1, 0.5, 1 << 40])) if whole else [value]
        )
    elif how == "type":
        kinds: list[Callable[[Any], Any]] = [str, bool, lambda one: [one], lambda one: {"": one}]
        inside[key] = draw(st.sampled_from([*kinds, *([float] if type(value) is int else [])]))(
            value
        )
    else:
        MOVES[how](draw, inside, key)
    path.write_text(text_of(root[0] if root else None))
    return how


def _delete(draw: Any, inside: Any, key: Any) -> None:
    del inside[key]


def _duplicate(draw: Any, inside: Any, key: Any) -> None:
    if isinstance(inside, list):
        inside.insert(key, copy.deepcopy(inside[key]))
    else:
        inside[f"{key}2"] = inside[key]


def _swap(draw: Any, inside: Any, key: Any) -> None:
    keys = [*inside] if isinstance(inside, dict) else range(len(inside))
    other = draw(st.sampled_from(keys))
    inside[key], inside[other] = inside[other], inside[key]


MOVES = {"delete": _delete, "duplicate": _duplicate, "swap": _swap}


def _edit_bytes(draw: Callable[[Any], Any], path: Path) -> str:
    """Flip a bit, cut off the end, or insert some bytes."""
    content = bytearray(path.read_bytes())
    how = draw(st.sampled_from(["flip", "flip", "flip", "cut", "insert"]))
    at = draw(st.integers(0, max(0, len(content) - 1)))
    if how == "flip" and content:
        content[at] ^= 1 << draw(st.integers(0, 7))
    elif how == "cut":
        del content[at:]
    else:
        content[at:at] = draw(st.binary(min_size=1, max_size=80))
    path.write_bytes(content)
    return how


def _edit_file(draw: Callable[[Any], Any], path: Path) -> str:
    """Put something else in the place of a file."""
    how = draw(st.sampled_from(["remove", "pipe", "folder", "link", "loop", "device", "other"]))
    kept = path.with_name("kept")
    shutil.copy(path, kept)
    path.unlink()
    if how == "pipe":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    elif how == "other":
        others = sorted(one for one in path.parent.iterdir() if one != kept and one != path)
        shutil.copy(draw(st.sampled_from(others)), path)
    elif how != "remove":
        path.symlink_to({"link": kept, "loop": path, "device": "/dev/zero"}[how])
    return how


@st.composite
def edited(draw: Any, folder: Path) -> tuple[str, str, bool]:
    """Change one file of a recording in place.

    Returns:
        the file, what was done, and whether its seal was made right again.
    """
    name = draw(st.sampled_from(sorted(path.name for path in folder.iterdir())))
    kinds = [*[_edit_bytes] * 3, _edit_file, *([_edit_value] * 4 if name.endswith("json") else [])]
    how = draw(st.sampled_from(kinds))(draw, folder / name)
    again = draw(st.booleans())
    if again and (folder / name).is_file() and not (folder / name).is_symlink():
        sealed_again(folder, name)
    return name, how, again
