"""The file `recording.json`, which says how a recording was made."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pytest_precision._git import git
from pytest_precision._visible import visible
from pytest_precision.errors import (
    RecordingError,
    RevisionError,
    expected_but_got,
    is_bad_input,
)
from pytest_precision.ranks import te_stand_in
from pytest_precision.trace.files import write_whole
from pytest_precision.trace.journal import journal_path
from pytest_precision.trace.rank_origin import FORMAT, RankOrigin
from pytest_precision.trace.sealed import (
    Seal,
    drop_seals,
    expect_signed,
    files_of,
    has_seals,
    optional_files_of,
    put_seals,
    read_signed,
    signed,
    sound_seal,
)
from pytest_precision.trace.sound import (
    sound_integer,
    sound_list,
    sound_object,
    sound_text,
    sound_texts,
    texts,
)

__tracebackhide__ = is_bad_input

READ_FORMATS = (2, FORMAT)
"""Formats that this release reads, earlier ones with a warning."""

MANIFEST_NAME = "recording.json"

RECORDED_RANKS = 1 << 16
"""Ranks that a recording may have; more than any launch, and few enough to look for each."""

RECORDED_PACKAGES = ("pytest-precision", "torch", "numpy")

STAND_IN = "transformer_engine"
"""Key in `versions` for the release of Transformer Engine that ran over the stand-in."""

GIT_SECONDS = 10
"""Time that git has to name the revision of a large work tree."""

ERROR_CHARACTERS = 400
"""Characters of an error that are shown: it may quote the file."""

_DESCRIBE = ("describe", "--always", "--abbrev=40", "--dirty")

JOIN = (
    "if nodes without a shared disk recorded it, name the folders of all of them to python -m "
    "pytest_precision join DIR ... --out DIR"
)

AGAIN = "make one with python -m pytest_precision record --out DIR -- train.py"


@dataclass(frozen=True)
class Manifest:
    """How a recording was made: its command, script, versions, world size and files.

    Attributes:
        format: version of the format.
        command: the command line of the whole process; none of a `Recorder`, whose loop no command
            of this package starts.
        script: the script file.
        arguments: of the script.
        steps: number of train steps that were asked for; the script may have made fewer.
        values: the steps whose values were asked for.
        world_size: number of ranks.
        date: when, in UTC.
        revision: git's name of the revision of the script, with `-dirty`; empty if it has none.
        versions: of Python and of packages.
        only: patterns of the names of the tensors that were looked at; none for all.
        every: they were looked at in the first step, in each such step after it, and in the last.
        files: name of each file to its number of bytes and its digest; none before all ranks have
            finished.
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
    only: tuple[str, ...] = ()
    every: int = 1
    files: dict[str, Seal] = field(default_factory=dict)

    @classmethod
    def now(
        cls,
        script: Path,
        arguments: Sequence[str],
        steps: int,
        values: Collection[int],
        *,
        only: Sequence[str] = (),
        every: int = 1,
    ) -> Manifest:
        """Return the manifest of a recording that this process is about to make."""
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
            only=tuple(only),
            every=every,
        )

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read and check the file `recording.json` in a recording's folder.

        Raises:
            RecordingError: there is none, or one of another format.
        """
        path = folder / MANIFEST_NAME
        if not os.path.lexists(path):
            lacks = f"{folder}, which has no {path.name}" if folder.is_dir() else f"no {folder}"
            advice = JOIN if has_seals(folder) else AGAIN
            raise RecordingError(expected_but_got("the folder of a recording", lacks, advice))
        try:
            content = read_signed(path)
            _expect_format(folder, content)
            return _manifest(expect_signed(path.name, content))
        except RecordingError:
            raise
        except Exception as error:
            raise damaged(folder, error) from error

    def write(self, folder: Path, world_size: int) -> None:
        """Write the file `recording.json` into a recording's folder."""
        content = signed(asdict(replace(self, world_size=world_size)))
        write_whole(folder / MANIFEST_NAME, content)

    @classmethod
    def seal(
        cls, folder: Path, rank: int, world_size: int, origin: RankOrigin | None = None
    ) -> None:
        """Write the digests of a rank's files; the last rank to do so completes the recording.

        Args:
            folder: of the recording.
            rank: that has written its files.
            world_size: number of ranks.
            origin: of its files; this process unless given.
        """
        files = put_seals(folder, rank, world_size, origin or RankOrigin.of_process(""))
        journal_path(folder, rank).unlink(missing_ok=True)
        if files is not None:
            replace(cls.read(folder), files=files).write(folder, world_size)
            drop_seals(folder, world_size)

    @property
    def is_imported(self) -> bool:
        """Whether the recording was imported from another tool's files."""
        return self.script.endswith(".json")

    @property
    def is_from_within(self) -> bool:
        """Whether a `Recorder` made the recording."""
        return not self.command

    def again(self, values: str = "", *, lines: int = 0, digest: str = "") -> str:
        """Return the command that repeats this recording, with more values or logs if asked.

        It is a command line, or the `Recorder` that keeps those values, and no logs.

        Args:
            values: steps whose values are kept; none unless given.
            lines: ranks over which the other side spreads its tensors; 0 for no log of operations.
            digest: name of the digests; that of the command unless given.
        """
        if self.is_from_within:
            first, _, last = values.partition("-")
            value_steps = f", values=range({first}, {int(last or first) + 1})" if values else ""
            return f"Recorder(..., steps={self.steps}{value_steps})"
        words = [*started_by(self.world_size), "record", "--out", "DIR"]
        words += ["--steps", str(self.steps)]
        words += ["--values", values] if values else []
        words += ["--lines"] if lines else []
        words += [str(lines)] if lines > 1 else []
        words += ["--digest", digest] if digest else []
        words += ["--te", "cpu"] if STAND_IN in self.versions else []
        words += [word for pattern in self.only for word in ("--only", pattern)]
        words += ["--every", str(self.every)] if self.every > 1 else []
        return shlex.join([*words, "--", self.script, *self.arguments])


def started_by(ranks: int) -> list[str]:
    """Return the words that begin a command of this package on a number of ranks."""
    launcher = ["python"] if ranks == 1 else ["torchrun", "--nproc-per-node", str(ranks)]
    return [*launcher, "-m", "pytest_precision"]


def damaged(folder: Path, error: Exception) -> RecordingError:
    """Return the error for a recording whose files cannot be read, with the reason."""
    why = " ".join(str(error).split())
    why = why if len(why) <= ERROR_CHARACTERS else f"{why[:ERROR_CHARACTERS]} ..."
    problem = f"{folder}, whose files are damaged: {type(error).__name__}: {why}"
    return RecordingError(visible(expected_but_got("the folder of a recording", problem, AGAIN)))


def _manifest(content: dict[str, Any]) -> Manifest:
    """Check the parsed content of `recording.json`, and return it as a manifest.

    Raises:
        ValueError: it names what cannot be.
    """
    content = {"only": [], "every": 1, **content}  # of a recording that has everything
    sound_object("recording.json", content, [field.name for field in fields(Manifest)])
    ranks = sound_integer("world_size", content["world_size"], 1, RECORDED_RANKS)
    files = sound_object("files", content["files"])
    if files:
        expected = [name for rank in range(ranks) for name in files_of(rank)]
        optional = [name for rank in range(ranks) for name in optional_files_of(rank)]
        present = [name for name in optional if name in files]
        sound_object("files", files, [*expected, *present])
    return Manifest(
        format=content["format"],
        command=texts("command", content["command"]),
        script=sound_text("script", content["script"]),
        arguments=texts("arguments", content["arguments"]),
        steps=sound_integer("steps", content["steps"]),
        values=tuple(
            sound_integer("a step of values", step)
            for step in sound_list("values", content["values"])
        ),
        world_size=ranks,
        date=sound_text("date", content["date"]),
        revision=sound_text("revision", content["revision"]),
        versions=sound_texts("versions", content["versions"]),
        only=texts("only", content["only"]),
        every=sound_integer("every", content["every"], 1),
        files={name: sound_seal(value) for name, value in files.items()},
    )


def _expect_format(folder: Path, content: Mapping[str, Any]) -> None:
    form = content.get("format")
    if type(form) is int and form in READ_FORMATS:
        if form != FORMAT:
            warnings.warn(
                f"{folder} is a recording of format {form}, which the next release no longer "
                f"reads; {AGAIN}",
                FutureWarning,
                stacklevel=2,
            )
    else:
        versions = content.get("versions")
        release = versions.get("pytest-precision") if isinstance(versions, dict) else None
        by = "the release that made it" + (f", {release!r:.40}" if release else "")
        raise RecordingError(
            expected_but_got(
                f"a recording of format {FORMAT}",
                f"format={form!r:.40} ({type(form).__name__}) in {folder}",
                f"record it again, or compare it with {by}",
            )
        )


def _revision(folder: Path) -> str:
    """Return git's description of the commit of a folder; empty without git or repository."""
    try:
        return git(folder, *_DESCRIBE, seconds=GIT_SECONDS)
    except RevisionError:
        return ""


def _versions() -> Iterator[tuple[str, str]]:
    yield "python", platform.python_version()
    for name in RECORDED_PACKAGES:
        with suppress(PackageNotFoundError):  # run from its sources
            yield name, version(name)
    if engine := te_stand_in.stand_in_running():
        yield STAND_IN, engine
