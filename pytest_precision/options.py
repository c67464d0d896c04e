"""Options: command line, environment and ini file are read into `Settings`.

One table defines all three, the option keywords of the marker and every error message. The marker
takes precedence over the command line, then follow environment, ini file and default.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

from pytest_precision import _values


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of the options, after all sources have been read.

    Attributes:
        enabled: whether cells run; otherwise they are skipped.
        select: (axis, values) pairs; a cell runs if it has one of the values on every axis.
        coverage: which of the selected cells run: `full`, `pairwise` or `smoke`.
        shard: index, from 1, and count of the runners that share the cells.
        device: where ranks run: `auto`, `cpu` or `cuda`.
        backend: backend of the number formats: `auto`, `emulated` or `native`.
        ranks: how ranks run: `reuse`, `fresh` or `inline`.
        timeout: deadline of one cell, in seconds.
        report: absolute path of the folder for report.json; with None no report is written.
        strict_isolation: whether a job that leaves process-global state changed fails its test.
        ranks_per_device: how many ranks may share a GPU.
        may_leave: patterns of the state that any job may leave changed.
        require: whether a session fails in which no cell ran, or one lacked ranks or devices.
        jitter: how many more times each candidate is recorded, with delays.
        fuzz: how many cells are drawn for each matrix test in addition to its own.
        mutate: whether known defects are planted into each candidate that passes.
        min_kill: share of them that the session's checks must notice.
        preload: modules that are imported once, and of which all ranks are copies.
        te: where layouts that use Transformer Engine run: `auto`, `cpu` or `off`.
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
    require: bool = False
    jitter: int = 0
    fuzz: int = 0
    mutate: bool = False
    min_kill: float = 0.0
    preload: tuple[str, ...] = ()
    te: str = "auto"

    @classmethod
    def of(cls, config: pytest.Config) -> Settings:
        """Read every option from the first source that has it.

        Raises:
            pytest.UsageError: a value is invalid; the message names its source.
        """
        return cls(
            **{option.field: value for option in OPTIONS for value in _given(option, config)}
        )

    def with_marker(self, keywords: Mapping[str, object], where: str) -> Settings:
        """Return these settings, overridden by the options among the keywords of a marker.

        Args:
            keywords: keywords of the marker; those that are not options are ignored.
            where: the test that has the marker, for messages.

        Raises:
            pytest.UsageError: a value is invalid.
        """
        own = {
            option.field: option.parsed([keywords[option.name]], option.name, where)
            for option in OPTIONS
            if option.of_marker and option.name in keywords
        }
        return replace(self, **own) if own else self


SETTINGS = pytest.StashKey[Settings]()
"""Key under which `pytest_configure` stores the settings of the session in `config.stash`."""


REPEATABLE: Mapping[str, Callable[[str], list[str]]] = {
    "args": str.split,
    "linelist": str.splitlines,
}
"""Ini types that are lists, and the function that splits an environment variable likewise."""


class Option(NamedTuple):
    """One row of the table: an option under all its names.

    Its name is `--precision-NAME` on the command line, `PRECISION_NAME` in the environment,
    `precision_name` in ini files and, if allowed there, `name` in the marker.

    Attributes:
        name: name of the option.
        parse: converts text to a value; it raises ValueError for invalid text.
        expected: description of valid values, for messages.
        metavar: placeholder for a value in the help.
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
        """The default in `Settings`, written as a user would write it."""
        value = getattr(Settings(), self.field)
        if isinstance(value, tuple):
            return "/".join(map(str, value)) or "none"
        return f"{value:g}" if isinstance(value, float) else str(value).lower()

    def parsed(self, given: Sequence[object], name: str, where: str) -> Any:
        """Parse what one source gives: all values of a repeatable option, else the last one.

        Args:
            given: text, or a typed value if the source has types.
            name: name by which the source calls the option.
            where: the source, for messages.

        Raises:
            pytest.UsageError: a value is invalid.
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
        """Return the error for an invalid value of this option."""
        return pytest.UsageError(
            f"{where}: expected {self.expected} but got {got}; "
            f"give such a value, or none for the default, {self.default}"
        )


TYPES_TO_COME = ("float",) if pytest.version_tuple < (8, 4) else ()
"""Ini types that this release of pytest does not know and would fail every session for."""


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
    """Yield the value from the first source that has one; nothing if no source has one."""
    for given, name, where, folder in _sources(option, config):
        value = option.parsed(given, name, where)
        yield folder / value if isinstance(value, Path) else value
        return


def _sources(
    option: Option, config: pytest.Config
) -> Iterator[tuple[Sequence[object], str, str, Path]]:
    """Yield (values, name, source, its folder) per source, the highest precedence first."""
    here = config.invocation_params.dir
    given = config.getoption(option.key)
    if given is not None:
        yield _several(given), option.flag, "command line", here
    # Shells and workflow files set an empty value to say "not set".
    if variable := os.environ.get(option.variable):
        split = REPEATABLE.get(option.ini_type)
        several = [variable] if split is None else split(variable)
        yield several, option.variable, "environment", here
    ini_file = str(config.inipath or "ini")
    try:
        entry = config.getini(option.key)
    except (TypeError, ValueError, pytest.UsageError) as error:
        # pytest converts booleans and numbers itself; its message lacks the key or the file.
        raise option.refused(f"{option.key}: {error}", ini_file) from None
    if entry not in (None, "", []):
        yield _several(entry), option.key, ini_file, config.rootpath


def _several(given: object) -> list[object]:
    return given if isinstance(given, list) else [given]


OPTIONS = (
    Option("matrix", _values.flag, "true or false", "", "run the matrix cells", "bool"),
    Option(
        "select",
        _values.selection,
        "AXIS=VALUE[,VALUE...]",
        "AXIS=VALUE[,VALUE...]",
        "keep only the cells with these values; repeatable",
        "args",
    ),
    Option(
        "coverage",
        *_values.one_of("full", "pairwise", "smoke"),
        "every cell; every pair of axis values; one cell per test",
        of_marker=True,
    ),
    Option(
        "shard", _values.shard, "I/N with I from 1 to N", "I/N", "this runner's share of the cells"
    ),
    Option("device", *_values.one_of("auto", "cpu", "cuda"), "where ranks run", of_marker=True),
    Option(
        "backend",
        *_values.one_of("auto", "emulated", "native"),
        "emulated number formats, or the hardware's",
        of_marker=True,
    ),
    Option(
        "ranks",
        *_values.one_of("reuse", "fresh", "inline"),
        "keep rank groups between cells; open a fresh group per run; run in the pytest process",
        of_marker=True,
    ),
    Option(
        "timeout",
        _values.seconds,
        f"a number of seconds above 0 and at most {_values.LONGEST_SECONDS}",
        "SECONDS",
        "deadline of one cell",
        "float",
        of_marker=True,
    ),
    Option("report", _values.folder, "a folder", "DIR", "write report.json there"),
    Option(
        "strict_isolation",
        _values.flag,
        "true or false",
        "",
        "fail a test whose job does not restore process-global state",
        "bool",
    ),
    Option(
        "ranks_per_device",
        _values.count,
        "an int from 1",
        "N",
        "how many ranks may share a GPU; ranks that share one communicate by gloo",
    ),
    Option(
        "may_leave",
        _values.pattern,
        "a pattern",
        "PATTERN",
        "state that any job may leave changed, named as in the leak warning; repeatable",
        "linelist",
    ),
    Option(
        "require",
        _values.flag,
        "true or false",
        "",
        "fail a session in which no cell ran, or one was skipped for want of ranks or devices",
        "bool",
    ),
    Option(
        "jitter",
        _values.count,
        "an int from 1",
        "N",
        "record each candidate N more times, one rank after the other late, and expect its bits",
        of_marker=True,
    ),
    Option(
        "fuzz",
        _values.count,
        "an int from 1",
        "N",
        "run each matrix test in N more cells, whose sequences hypothesis draws",
        of_marker=True,
    ),
    Option(
        "mutate",
        _values.flag,
        "true or false",
        "",
        "plant known defects into each candidate that passes, and say which go unnoticed",
        "bool",
        of_marker=True,
    ),
    Option(
        "min_kill",
        _values.share,
        "a share from 0 to 1",
        "SHARE",
        "fail a session that notices a smaller share of these defects",
        "float",
    ),
    Option(
        "preload",
        _values.module,
        "the name of a module, such as megatron.core",
        "MODULE",
        "import it once for all ranks that are started here; repeatable",
        "args",
    ),
    Option(
        "te",
        *_values.one_of("auto", "cpu", "off"),
        "run layouts that use Transformer Engine on the CPU, over a stand-in for its kernels",
    ),
)

MARKER_OPTIONS = tuple(option.name for option in OPTIONS if option.of_marker)
"""Keywords of the marker `precision_matrix` that are options rather than axes."""
