"""Option: one option of the plugin, under all names that users write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pytest

from pytest_precision.errors import named
from pytest_precision.options.settings import Settings

REPEATABLE: Mapping[str, Callable[[str], list[str]]] = {
    "args": str.split,
    "linelist": str.splitlines,
}
"""Ini types that are lists, and the function that splits the text of an environment variable."""


class Option(NamedTuple):
    """One option of the plugin, with its flag, its environment variable and its key in ini files.

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
        alone: what the flag means without a value, where it may stand alone.
        instead: what to write in place of a flag and a variable that will go, for the warning.
    """

    name: str
    parse: Callable[[str], Any]
    expected: str
    metavar: str
    help: str
    ini_type: Literal["string", "bool", "float", "args", "linelist"] = "string"
    of_marker: bool = False
    alone: str | None = None
    instead: str = ""

    @property
    def field(self) -> str:
        """The option's name as a field of `Settings`."""
        return "enabled" if self.name == "matrix" else self.name

    @property
    def flag(self) -> str:
        """The option's name on the command line."""
        return f"--precision-{self.name.replace('_', '-')}"

    @property
    def key(self) -> str:
        """The option's name in ini files."""
        return f"precision_{self.name}"

    @property
    def variable(self) -> str:
        """The option's name as an environment variable."""
        return self.key.upper()

    @property
    def default(self) -> str:
        """The option's default value, as a user would write it."""
        value = getattr(Settings(), self.field)
        if value is None:
            return "none"
        if isinstance(value, tuple):
            return "/".join(map(str, value)) or "none"
        return f"{value:g}" if isinstance(value, float) else str(value).lower()

    def parsed(self, entries: Sequence[object], name: str, where: str) -> Any:
        """Parse what one source, such as the ini file, gives for this option.

        All values count if the option is repeatable, else the last.

        Args:
            entries: text, or a typed value if the source has types.
            name: name by which the source calls the option.
            where: the source, for messages.

        Raises:
            pytest.UsageError: a value is invalid.
        """
        values = []
        for entry in entries:
            try:
                values.append(self.parse(str(entry)))
            except ValueError:
                raise self.refused(named(name, entry), where) from None
        return tuple(values) if self.ini_type in REPEATABLE else values[-1]

    def refused(self, got: str, where: str) -> pytest.UsageError:
        """Return the error for an invalid value of this option."""
        return pytest.UsageError(
            f"{where}: expected {self.expected} but got {got}; "
            f"give such a value, or none for the default, {self.default}"
        )
