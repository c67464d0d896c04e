"""Origin: how a recording was made: the file `recording.json` next to the trace."""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pytest_precision.errors import RecordingError, expected_but_got, named
from pytest_precision.trace.files import write_whole

FORMAT = 1
"""Format of a recording: of this file and of all others in its folder."""

PACKAGES = ("pytest-precision", "torch", "numpy")

GIT_SECONDS = 10
"""Time that git has to name the revision of a large work tree."""

AGAIN = "make one with python -m pytest_precision record --out DIR -- train.py"


@dataclass(frozen=True)
class Origin:
    """How a recording was made.

    Attributes:
        format: version of the format.
        command: the command line of the whole process.
        script: the script file.
        arguments: of the script.
        steps: number of train steps that were asked for; the script may have made fewer.
        values: the steps whose values were asked for.
        world_size: number of ranks.
        date: when, in UTC.
        revision: git's name of the revision of the script, with `-dirty`; empty if it has none.
        versions: of Python and of packages.
    """

    format: int
    command: tuple[str, ...]
    script: str
    arguments: tuple[str, ...]
    steps: int
    values: tuple[int, ...]
    world_size: int
    date: str
    revision: str
    versions: dict[str, str]

    @classmethod
    def now(
        cls, script: Path, arguments: Sequence[str], steps: int, values: Collection[int]
    ) -> Origin:
        """Return the origin of a recording that this process is about to make."""
        return cls(
            format=FORMAT,
            command=tuple(sys.orig_argv),
            script=str(script),
            arguments=tuple(arguments),
            steps=steps,
            values=tuple(sorted(values)),
            world_size=1,
            date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            revision=_revision(script.resolve().parent),
            versions=dict(_versions()),
        )

    @classmethod
    def read(cls, folder: Path) -> Origin:
        """Read the origin of the recording in a folder.

        Raises:
            RecordingError: there is none, or one of another format.
        """
        path = _path(folder)
        if not path.is_file():
            lacks = f"{folder}, which has no {path.name}" if folder.is_dir() else f"no {folder}"
            raise RecordingError(expected_but_got("the folder of a recording", lacks, AGAIN))
        try:
            found = json.loads(path.read_text())
            _expect_format(folder, found)
            lists = {name: tuple(found[name]) for name in ("command", "arguments", "values")}
            return cls(**found | lists)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise damaged(folder, error) from error

    def write(self, folder: Path, world_size: int) -> None:
        """Write it into the folder of the recording of so many ranks."""
        write_whole(_path(folder), asdict(replace(self, world_size=world_size)))

    def again(self, values: str) -> str:
        """Return the command that makes the recording again, with the values of some steps."""
        options = ["--out", "DIR", "--steps", str(self.steps), "--values", values, "--"]
        words = ["python", "-m", "pytest_precision", "record", *options]
        return shlex.join([*words, self.script, *self.arguments])


def damaged(folder: Path, error: Exception) -> RecordingError:
    """Return the error of a recording whose files cannot be read."""
    what = f"{folder}, whose files are damaged: {type(error).__name__}: {error}"
    return RecordingError(expected_but_got("the folder of a recording", what, AGAIN))


def _expect_format(folder: Path, found: Mapping[str, Any]) -> None:
    if found["format"] != FORMAT:
        raise RecordingError(
            expected_but_got(
                f"a recording of format {FORMAT}",
                f"{named('format', found['format'])} in {folder}",
                f"it was made by {found.get('versions')}: compare it with that release, or record "
                "it again",
            )
        )


def _path(folder: Path) -> Path:
    return folder / "recording.json"


def _revision(folder: Path) -> str:
    """Return git's name of what is checked out in a folder; empty without git or a repository."""
    # Without locks, since somebody may be working in the repository.
    words = ["git", "--no-optional-locks", "describe", "--always", "--abbrev=40", "--dirty"]
    try:
        found = subprocess.run(
            words, cwd=folder, capture_output=True, text=True, timeout=GIT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()


def _versions() -> Iterator[tuple[str, str]]:
    yield "python", platform.python_version()
    for name in PACKAGES:
        with suppress(PackageNotFoundError):  # run from its sources
            yield name, version(name)
