"""Options: command line, environment and ini to `Settings`.

One table drives all three, the marker's option keywords and every error message. Marker beats
command line beats environment beats ini beats default.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest


@dataclass(frozen=True, slots=True)
class Settings:
    """What the options say, after all sources have been read.

    Attributes:
        enabled: whether cells run; otherwise they are skipped.
        select: (axis, values) pairs; a cell runs if it has one of the values on every axis.
        coverage: which of the selected cells run: `full`, `pairwise` or `smoke`.
        shard: index, from 1, and count of the runners that share the cells.
        device: where ranks run: `auto`, `cpu` or `cuda`.
        backend: number formats: `auto`, `emulated` or `native`.
        ranks: `reuse`, `fresh` or `inline`.
        timeout: deadline of one cell, in seconds.
        report: folder for report.json, absolute; None writes none.
        strict_isolation: whether a job that leaves process-global state behind fails its test.
        ranks_per_device: how many ranks may share a GPU.
        may_leave: patterns of what any job may leave changed.
    """

    enabled: bool = False
    select: tuple[tuple[str, tuple[str, ...]], ...] = ()
    coverage: str = "full"
    shard: tuple[int, int] = (1, 1)
    device: str = "auto"
    backend: str = "auto"
    ranks: str = "reuse"
    timeout: float = 300.0
    report: Path | None = None
    strict_isolation: bool = False
    ranks_per_device: int = 1
    may_leave: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: pytest.Config) -> Settings:
        """Read every option from the first source that has it.

        Raises:
            pytest.UsageError: for a value that the option cannot have, with its source.
        """
        return cls(
            **{option.field: value for option in OPTIONS for value in _given(option, config)}
        )

    def with_marker(self, keywords: Mapping[str, object], where: str) -> Settings:
        """These settings under the options that a marker has among its keywords.

        Args:
            keywords: of the marker; those that are no option are left alone.
            where: the test that has the marker, for messages.

        Raises:
            pytest.UsageError: for a value that the option cannot have.
        """
        own = {
            option.field: option.parsed([keywords[option.name]], option.name, where)
            for option in OPTIONS
            if option.of_marker and option.name in keywords
        }
        return replace(self, **own) if own else self


SETTINGS = pytest.StashKey[Settings]()
"""Where `pytest_configure` leaves the settings of the session in `config.stash`."""


REPEATABLE: Mapping[str, Callable[[str], list[str]]] = {
    "args": str.split,
    "linelist": str.splitlines,
}
"""Types of lists in ini files, and how an environment variable has the same list."""


class Option(NamedTuple):
    """One row of the table: an option under all its names.

    The command line says `--precision-NAME`, the environment `PRECISION_NAME`, ini files
    `precision_name` and the marker, if it may, `name`.

    Attributes:
        name: of the option.
        parse: text to value; a ValueError says that the text is none.
        expected: what a value is, for messages.
        metavar: stands for a value in the help.
        help: what the option does.
        ini_type: how pytest reads the ini value; the lists in `REPEATABLE` make the option
            repeatable.
        of_marker: whether a marker may override it.
    """

    name: str
    parse: Callable[[str], Any]
    expected: str
    metavar: str
    help: str
    ini_type: Literal["string", "bool", "float", "args", "linelist"] = "string"
    of_marker: bool = False

    @property
    def field(self) -> str:
        """Name in `Settings`."""
        return "enabled" if self.name == "matrix" else self.name

    @property
    def flag(self) -> str:
        """Name on the command line."""
        return f"--precision-{self.name.replace('_', '-')}"

    @property
    def key(self) -> str:
        """Name in ini files."""
        return f"precision_{self.name}"

    @property
    def variable(self) -> str:
        """Name in the environment."""
        return self.key.upper()

    @property
    def default(self) -> str:
        """The default of `Settings`, as one would write it."""
        value = getattr(Settings(), self.field)
        if isinstance(value, tuple):
            return "/".join(map(str, value)) or "none"
        return f"{value:g}" if isinstance(value, float) else str(value).lower()

    def parsed(self, given: Sequence[object], name: str, where: str) -> Any:
        """The value that one source gives; of several, only where the option is repeatable.

        Args:
            given: text, or what stands for it where the source has types.
            name: under which the option was given.
            where: the source, for messages.

        Raises:
            pytest.UsageError: for what is no value.
        """
        values = []
        for entry in given:
            try:
                values.append(self.parse(str(entry)))
            except ValueError:
                got = f"{name}={entry!r} ({type(entry).__name__})"
                raise self.refused(got, where) from None
        return tuple(values) if self.ini_type in REPEATABLE else values[-1]

    def refused(self, got: str, where: str) -> pytest.UsageError:
        """The error for what is no value of this option."""
        return pytest.UsageError(
            f"{where}: expected {self.expected} but got {got}; "
            f"give such a value, or none for the default, {self.default}"
        )


TYPES_TO_COME = ("float",) if pytest.version_tuple < (8, 4) else ()
"""Types of ini values that this pytest does not know, and would end every session for."""


def add_options(parser: pytest.Parser) -> None:
    """Declare every option to pytest."""
    group = parser.getgroup("precision", "precision: candidate and reference in every cell")
    for option in OPTIONS:
        # None means not given, so that the next source is asked.
        kind: dict[str, Any] = {"action": "store_true"}
        if option.ini_type != "bool":
            action = "append" if option.ini_type in REPEATABLE else "store"
            kind = {"action": action, "metavar": option.metavar}
        text = f"{option.help} (default: {option.default})"
        group.addoption(option.flag, dest=option.key, default=None, help=text, **kind)
        ini_type = "string" if option.ini_type in TYPES_TO_COME else option.ini_type
        parser.addini(option.key, f"{option.flag}: {text}", ini_type, None)


def _given(option: Option, config: pytest.Config) -> Iterator[Any]:
    """The value from the first source that has one, or nothing."""
    for given, name, where, folder in _sources(option, config):
        value = option.parsed(given, name, where)
        yield folder / value if isinstance(value, Path) else value
        return


def _sources(
    option: Option, config: pytest.Config
) -> Iterator[tuple[Sequence[object], str, str, Path]]:
    """What the sources give, those that beat others first: values, name, source, its folder."""
    here = config.invocation_params.dir
    given = config.getoption(option.key)
    if given is not None:
        yield _several(given), option.flag, "command line", here
    # Set but empty is how shells and workflow files say "not set".
    if variable := os.environ.get(option.variable):
        split = REPEATABLE.get(option.ini_type)
        several = [variable] if split is None else split(variable)
        yield several, option.variable, "environment", here
    ini_file = str(config.inipath or "ini")
    try:
        entry = config.getini(option.key)
    except (TypeError, ValueError, pytest.UsageError) as error:
        # pytest converts booleans and numbers itself, and its words miss the key or the file.
        raise option.refused(f"{option.key}: {error}", ini_file) from None
    if entry not in (None, "", []):
        yield _several(entry), option.key, ini_file, config.rootpath


def _several(given: object) -> list[object]:
    return given if isinstance(given, list) else [given]


_FLAGS = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(
    ("0", "false", "no", "off"), False
)


def _flag(text: str) -> bool:
    if text.lower() not in _FLAGS:
        raise ValueError(text)
    return _FLAGS[text.lower()]


def _one_of(*known: str) -> tuple[Callable[[str], str], str, str]:
    """Parse function, expectation and metavar of a choice."""

    def parse(text: str) -> str:
        if text not in known:
            raise ValueError(text)
        return text

    return parse, f"one of {', '.join(known)}", "|".join(known)


def _selection(text: str) -> tuple[str, tuple[str, ...]]:
    axis, _, values = text.partition("=")
    if not axis or not all(values.split(",")):
        raise ValueError(text)
    return axis, tuple(values.split(","))


def _shard(text: str) -> tuple[int, int]:
    index, count = map(int, text.split("/"))
    if not 1 <= index <= count:
        raise ValueError(text)
    return index, count


LONGEST_SECONDS = 1_000_000
"""Eleven days; `poll` counts milliseconds in an int, which ends at twice as many."""


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= LONGEST_SECONDS:
        raise ValueError(text)
    return seconds


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise ValueError(text)
    return count


def _pattern(text: str) -> str:
    if not text:
        raise ValueError(text)
    return text


def _folder(text: str) -> Path:
    if not text:
        raise ValueError(text)
    return Path(text)


OPTIONS = (
    Option("matrix", _flag, "true or false", "", "run the matrix cells", "bool"),
    Option(
        "select",
        _selection,
        "AXIS=VALUE[,VALUE...]",
        "AXIS=VALUE[,VALUE...]",
        "keep only the cells with these values; repeatable",
        "args",
    ),
    Option(
        "coverage",
        *_one_of("full", "pairwise", "smoke"),
        "every cell; every pair of axis values; one cell a test",
        of_marker=True,
    ),
    Option("shard", _shard, "I/N with I from 1 to N", "I/N", "this runner's share of the cells"),
    Option("device", *_one_of("auto", "cpu", "cuda"), "where ranks run", of_marker=True),
    Option(
        "backend",
        *_one_of("auto", "emulated", "native"),
        "emulated number formats, or the hardware's",
        of_marker=True,
    ),
    Option(
        "ranks",
        *_one_of("reuse", "fresh", "inline"),
        "keep rank groups between cells; a fresh group each run; in the pytest process",
        of_marker=True,
    ),
    Option(
        "timeout",
        _seconds,
        f"a number of seconds above 0 and at most {LONGEST_SECONDS}",
        "SECONDS",
        "deadline of one cell",
        "float",
        of_marker=True,
    ),
    Option("report", _folder, "a folder", "DIR", "write report.json there"),
    Option(
        "strict_isolation",
        _flag,
        "true or false",
        "",
        "fail a test whose ranks are left with other process-global state",
        "bool",
    ),
    Option(
        "ranks_per_device",
        _count,
        "an int from 1",
        "N",
        "how many ranks may share a GPU, with gloo among them",
    ),
    Option(
        "may_leave",
        _pattern,
        "a pattern",
        "PATTERN",
        "what any job may leave changed, as a leak names it; repeatable",
        "linelist",
    ),
)

MARKER_OPTIONS = tuple(option.name for option in OPTIONS if option.of_marker)
"""Keywords of the marker `precision_matrix` that are options, not axes."""
