"""Read and write files of expected results, one per check and software environment."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
import xxhash

from pytest_precision._destination import Destination, NotReplaceableError
from pytest_precision._within import path_within
from pytest_precision.errors import (
    BaselineError,
    NoBaselineError,
    expected_but_got,
    undecodable_byte,
)
from pytest_precision.parity.verdict import cell_of
from pytest_precision.probes.baselines.baseline_text import (
    FIRST_LINES,
    MAKER_WORDS,
    UPDATE,
    CheckBaseline,
    unescaped,
)

FOLDER = "precision_baselines"
"""Folder of all baselines in pytest's root, unless another one is given."""

LONGEST_NAME = 120
"""Characters of a file's name that come from the cell; systems allow 255 bytes in all."""

MOST_KEYS = 1000
"""Lines at the top of a baseline among which its environment is looked for."""

_KEYED = "[0-9a-f]" * 8

_GOLDEN = re.compile(r"[\w.+-]+(/[\w.+-]+)*")


@dataclass(frozen=True)
class BaselinePlace:
    """The files with the expected results of one check, one file for each environment.

    Attributes:
        folder: which holds them.
        name: of the files, without what comes from the environment.
        test: pytest's id of the test.
    """

    folder: Path
    name: str
    test: str

    @classmethod
    def of_test(cls, root: Path, nodeid: str, number: int) -> BaselinePlace:
        """Return the place of a check's baseline files: a folder named after its test.

        Args:
            root: folder of all baselines.
            nodeid: pytest's id of the test.
            number: of the check in its test, from 1.

        Raises:
            BaselineError: the test's file lies outside pytest's root.
        """
        file, _, rest = nodeid.partition("::")
        test = rest.partition("[")[0].replace("::", ".")
        advice = "run pytest with a --rootdir that contains the test"
        expected = "a test with a baseline"
        name = f"{file}/{test}"
        folder = path_within(root, name, expected, follow=True, advice=advice, error=BaselineError)
        return cls(folder, _file_name(nodeid, number), nodeid)

    @classmethod
    def of_name(cls, root: Path, name: str, nodeid: str) -> BaselinePlace:
        """Return the place of baseline files to which the test gives a name, as `golden/llama`.

        Raises:
            ValueError: the name cannot be that of a folder.
        """
        advice = "write a name such as 'golden/llama', of letters, digits and ._+-"
        if not _GOLDEN.fullmatch(name):
            raise ValueError(expected_but_got("the name of a baseline", f"{name!r} (str)", advice))
        folder = path_within(root, name, "the name of a baseline", follow=True, advice=advice)
        return cls(folder, _file_name(nodeid, 1), nodeid)

    def file(self, key: Mapping[str, str]) -> Path:
        """Return the path of the baseline for an environment, whose hash is in the name."""
        text = json.dumps(sorted(key.items()))
        return self.folder / f"{self.name}.{xxhash.xxh3_64_hexdigest(text.encode())[:8]}.txt"

    def read(self, key: Mapping[str, str]) -> CheckBaseline:
        """Read the results that a baseline file expects in an environment.

        Raises:
            NoBaselineError: there is none; the message has those that there are.
            BaselineError: it cannot be read.
        """
        try:
            baseline = read_baseline(self.file(key))
        except FileNotFoundError as error:
            raise NoBaselineError(self._lacking_words(key)) from error
        if dict(baseline.key) != dict(key):
            got = f"{self.file(key)}, whose `key` lines describe another one"
            raise BaselineError(expected_but_got("the baseline of this environment", got, UPDATE))
        return baseline

    def write(self, baseline: CheckBaseline) -> bool:
        """Write a baseline file unless it is the same already; return whether it was written.

        Raises:
            BaselineError: it cannot be written.
        """
        path = self.file(baseline.key)
        text = baseline.text()
        try:
            if path.exists() and path.read_bytes() == text.encode():
                return False
            path.parent.mkdir(parents=True, exist_ok=True)
            Destination(path, is_baseline).put(text)
        except NotReplaceableError as error:
            raise BaselineError(str(error)) from error
        except OSError as error:
            raise BaselineError(
                expected_but_got(
                    "a folder for baselines that can be written to",
                    f"{path.parent} ({error.strerror})",
                    "make room there, or name another one with precision_baseline_dir",
                )
            ) from error
        return True

    def _lacking_words(self, key: Mapping[str, str]) -> str:
        """Return in words that an environment has no baseline, and which environments have one."""
        update = "make one with --precision-baseline=update"
        pattern = re.sub(r"([\[\]*?])", r"[\1]", self.name) + f".{_KEYED}.txt"
        keys = map(key_of_baseline, sorted(self.folder.glob(pattern)))
        other_keys = [other for other in keys if other is not None]
        if not other_keys:
            return f"there is no baseline in {self.folder}; {update}"
        others = "; ".join(_words_on_other(other, key) for other in other_keys)
        return f"there is no baseline for this environment, but {others}; {update}"


def read_baseline(path: Path) -> CheckBaseline:
    """Read the expected results of a check from a baseline file.

    Raises:
        FileNotFoundError: there is no such file.
        BaselineError: it cannot be read, or it is damaged.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        got = f"{path} ({error.strerror})"
        raise BaselineError(expected_but_got("a baseline that can be read", got, UPDATE)) from error
    # Only here: it needs torch, which the session's summary of the files does without.
    from pytest_precision.probes.baselines.baseline_lines import baseline_of

    try:
        return baseline_of(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        got = f"{undecodable_byte(error)} of {path}"
        raise BaselineError(expected_but_got("a baseline in UTF-8", got, UPDATE)) from error
    except BaselineError as error:
        raise BaselineError(f"{path}: {error}") from error


def claim(folder: Path, file: Path, writer: str) -> None:
    """Note that a check writes a baseline in this session, in which no other check may write it.

    Args:
        folder: which all processes of the session share.
        file: the baseline.
        writer: the check, in words.

    Raises:
        BaselineError: another check has written it.
    """
    taken = folder / xxhash.xxh3_128_hexdigest(os.fsencode(file.absolute()))
    draft = taken.with_name(f"{taken.name}.{os.getpid()}")
    folder.mkdir(parents=True, exist_ok=True)
    draft.write_text(writer, encoding="utf-8", errors="backslashreplace")
    try:
        os.link(draft, taken)  # whole, and only if there is none
    except FileExistsError:
        first = taken.read_text(encoding="utf-8")
        if first != draft.read_text(encoding="utf-8"):
            expected = f"one check to write {file}"
            advice = "give one of them another name"
            raise BaselineError(
                expected_but_got(expected, f"{first} and {writer}", advice)
            ) from None
    finally:
        draft.unlink()


def is_baseline(head: bytes) -> bool:
    """Return whether a file that begins so is a baseline of this package, of any release."""
    return head.startswith(MAKER_WORDS.encode())


def expect_replaceable(folder: Path) -> None:
    """Raise if a folder has files with names of baselines that this package did not make.

    Raises:
        pytest.UsageError: the message names the first.
    """
    for path in all_baselines(folder):
        try:
            Destination(path, is_baseline).expect_free()
        except OSError as error:
            raise pytest.UsageError(f"--precision-baseline=update: {error}") from error


def all_baselines(folder: Path) -> list[Path]:
    """List the paths of all baseline files in a folder, at any depth."""
    return sorted(folder.rglob(f"*.{_KEYED}.txt"))


def key_digest_of(path: Path) -> str:
    """Return the hash of the environment that stands at the end of a baseline file's name."""
    return path.stem.rpartition(".")[2]


def shown_from(root: Path, path: Path) -> str:
    """Return a path relative to pytest's root; the whole path if it is outside."""
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def maker_of_baseline(path: Path) -> str:
    """Return the node id of the test that wrote a baseline file; empty if the file has none."""
    with open(path, encoding="utf-8", errors="replace") as lines:
        first, second = next(lines, ""), next(lines, "")
    is_one = first.rstrip("\n") in FIRST_LINES
    return second.removeprefix("test ").rstrip("\n") if is_one else ""


def key_of_baseline(path: Path) -> dict[str, str] | None:
    """Return the environment that a baseline file names; None if the file is no baseline.

    It is another environment's, so that whatever else is wrong with it is said there.
    """
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[:MOST_KEYS]
    if not lines or lines[0] not in FIRST_LINES:
        return None
    keys = (line.split(" ", 2)[1:] for line in lines if line.startswith("key "))
    return {name: _shown("".join(value)) for name, *value in keys}


def _shown(escaped: str) -> str:
    try:
        return unescaped(escaped)
    except ValueError:
        return escaped


def _words_on_other(other: Mapping[str, str], key: Mapping[str, str]) -> str:
    """Return words on how the environment of an `other` baseline differs from this `key`."""
    names = sorted(name for name in {*other, *key} if other.get(name) != key.get(name))
    words = (f"{name} {other.get(name, 'none')}, not {key.get(name, 'none')}" for name in names)
    return f"one for {', '.join(words)}"


def _file_name(nodeid: str, number: int) -> str:
    cell = cell_of(nodeid)
    name = quote("once" if cell == nodeid else cell, safe="=,@+")
    if len(name) > LONGEST_NAME:
        name = f"{name[:LONGEST_NAME]}-{xxhash.xxh3_64_hexdigest(cell.encode())}"
    return name if number == 1 else f"{name}-check{number}"
