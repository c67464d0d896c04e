"""Code lines: where something was called, and what the lines of a run did that is no operation."""

from __future__ import annotations

from typing import NamedTuple


class CodeLine(NamedTuple):
    """Where an operation was called.

    Attributes:
        file: path of the source file.
        line: its line.
        function: name of the function that the line is in.
        called: name of the package's function that the line calls, in which the operation is; empty
            where the line itself is the operation.
        own: whether the file is the user's, rather than one of an installed package.
    """

    file: str
    line: int
    function: str
    called: str
    own: bool


class Site(NamedTuple):
    """A line of code that is not the user's, from which something is called."""

    file: str
    line: int


class UserCall(NamedTuple):
    """A call of a function of the user's by code that is not.

    Attributes:
        site: where it was called.
        line: of the function, the one that left others out; its first one if none did.
        operations: how many were logged before it, and when it returned.
        settings: likewise.
    """

    site: Site
    line: CodeLine
    operations: tuple[int, int]
    settings: tuple[int, int]


class Setting(NamedTuple):
    """What is no tensor, set by a line.

    Attributes:
        before: number of operations that had been logged by then.
        what: as `lr`, or the name of an attribute.
        owner: as `group 0`, or the path of a module.
        value: as text.
        line: that set it.
        sites: see `LoggedOperation`.
    """

    before: int
    what: str
    owner: str
    value: str
    line: CodeLine | None
    sites: tuple[Site, ...] = ()

    @property
    def name(self) -> str:
        """Return what was set, and of what."""
        return f"{self.what} of {self.owner}"
