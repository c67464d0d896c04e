"""Read options by precedence: marker, then command line, environment, ini file and default."""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_precision.options.option import REPEATABLE, Option
from pytest_precision.options.settings import Settings
from pytest_precision.options.table import FORMER, OPTIONS

TYPES_TO_COME = ("float",) if pytest.version_tuple < (8, 4) else ()
"""Ini types that this release of pytest does not know and would fail every session for."""


def add_options(parser: pytest.Parser) -> None:
    """Declare every option to pytest."""
    group = parser.getgroup("precision", "precision: candidate and reference in every cell")
    for option in (*OPTIONS, *FORMER):
        # None means not given, so that the next source is asked.
        kind: dict[str, Any] = {"action": "store_true"}
        if option.ini_type != "bool":
            action = "append" if option.ini_type in REPEATABLE else "store"
            kind = {"action": action, "metavar": option.metavar}
        if option.alone is not None:
            kind |= {"nargs": "?", "const": option.alone}
        default = "" if option in FORMER else f" (default: {option.default})"
        text = f"{option.help}{default}"
        shown = argparse.SUPPRESS if option.instead or option in FORMER else text
        group.addoption(option.flag, dest=option.key, default=None, help=shown, **kind)
        ini_type = "string" if option.ini_type in TYPES_TO_COME else option.ini_type
        named = text if option.instead else f"{option.flag}: {text}"
        parser.addini(option.key, named, ini_type, None)


def read_options(config: pytest.Config) -> Settings:
    """Read every option from the source of highest precedence that has it.

    Raises:
        pytest.UsageError: a value is invalid; the message names its source.
    """
    for option in FORMER:
        for _, name, where, _ in _sources(option, config):
            _warn_of_former(name, where)
    settings = {
        option.field: value for option in OPTIONS for value in _from_first_source(option, config)
    }
    return Settings(**settings)


def cells_are_asked_for(config: pytest.Config) -> bool:
    """Return whether cells run in a session, as early as before any `conftest.py` is imported.

    Raises:
        pytest.UsageError: the value is invalid; the message names its source.
    """
    matrix = next(option for option in OPTIONS if option.field == "enabled")
    return next(_from_first_source(matrix, config), Settings().enabled)


def with_marker(settings: Settings, keywords: Mapping[str, object], where: str) -> Settings:
    """Return settings with the options in a marker's keywords applied.

    Args:
        settings: what the session was asked for.
        keywords: keywords of the marker; those that are not options are ignored.
        where: the test that has the marker, for messages.

    Raises:
        pytest.UsageError: a value is invalid.
    """
    for option in FORMER:
        if option.name in keywords:
            _warn_of_former(option.name, where)
    overridden = {
        option.field: option.parsed([keywords[option.name]], option.name, where)
        for option in OPTIONS
        if option.of_marker and option.name in keywords
    }
    return replace(settings, **overridden) if overridden else settings


def _from_first_source(option: Option, config: pytest.Config) -> Iterator[Any]:
    """Yield the parsed value of an option from the first source that has one, if any."""
    for entries, name, where, folder in _sources(option, config):
        if option.instead and name != option.key:
            words = f"{where}: {name} will be removed in the next release; write {option.instead}"
            warnings.warn(pytest.PytestDeprecationWarning(words), stacklevel=2)
        value = option.parsed(entries, name, where)
        yield folder / value if isinstance(value, Path) else value
        return


def _warn_of_former(name: str, where: str) -> None:
    words = f"{where}: {name} does nothing any more, and the next release refuses it; leave it out"
    warnings.warn(pytest.PytestDeprecationWarning(words), stacklevel=3)


def _sources(
    option: Option, config: pytest.Config
) -> Iterator[tuple[Sequence[object], str, str, Path]]:
    """Yield (values, name, source, base folder) of an option, highest precedence first."""
    invocation_dir = config.invocation_params.dir
    argument = config.getoption(option.key)
    if argument is None:  # before any conftest.py is imported, only this has what is known
        argument = getattr(config.known_args_namespace, option.key, None)
    if argument is not None:
        yield _several(argument), option.flag, "command line", invocation_dir
    variable = os.environ.get(option.variable)
    if variable is not None:
        split = REPEATABLE.get(option.ini_type)
        # An empty text is no list without entries: what was to be in it may not have been set.
        several = [variable] if split is None else split(variable) or [variable]
        yield several, option.variable, "environment", invocation_dir
    ini_file = str(config.inipath or "ini")
    try:
        entry = config.getini(option.key)
    except (TypeError, ValueError, pytest.UsageError) as error:
        # pytest converts booleans and numbers itself; its message lacks the key or the file.
        raise option.refused(f"{option.key}: {error}", ini_file) from None
    if entry not in (None, []):
        yield _several(entry), option.key, ini_file, config.rootpath


def _several(argument: object) -> list[object]:
    return argument if isinstance(argument, list) else [argument]
