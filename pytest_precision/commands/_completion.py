"""Print what completes the words of the command line in a shell; `shtab` makes it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_precision.commands import say
from pytest_precision.errors import expected_but_got

PROGRAM = "pytest-precision"
"""The name that is completed: a shell completes no `python -m`."""


class PrintCompletion(argparse.Action):
    """Prints the completion for the shell that its argument names, and ends the process."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Print it.

        Raises:
            SystemExit: always.
        """
        try:
            import shtab
        except ImportError:
            advice = f"pip install '{PROGRAM}[completion]'"
            parser.error(expected_but_got("shtab to be installed", "no module of its name", advice))
        parser.prog = PROGRAM
        for command in _parsers(parser):
            for action in command._actions:
                if action.type is Path:
                    action.complete = shtab.FILE  # type: ignore[attr-defined]
        say(shtab.complete(parser, values))
        parser.exit()


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and those of its commands; argparse has no public name for them."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _parsers(command)
