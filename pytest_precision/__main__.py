"""The command line of the package: `python -m pytest_precision COMMAND`."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from time import monotonic

from pytest_precision._folders import sweep_temporary_folder
from pytest_precision._interrupts import WholeTorch
from pytest_precision.commands._completion import PrintCompletion
from pytest_precision.errors import expected_but_got
from pytest_precision.version import __version__

COMMANDS = (
    "record",
    "score",
    "compare",
    "join",
    "diff",
    "bisect",
    "export",
    "init",
    "report",
    "audit",
)
"""Modules of `commands`, in the order of the help."""

RUN_A_SCRIPT = ("record", "score", "diff", "bisect")
"""Commands that take a script and its arguments after `--`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the subcommand that the command line names, such as `record`; return its exit status.

    Args:
        arguments: those of the command line unless given.
    """
    parser = argparse.ArgumentParser(prog="pytest_precision", description=__doc__)
    parser.add_argument("--version", action="version", version=f"pytest-precision {__version__}")
    parser.add_argument(
        "--print-completion",
        metavar="SHELL",
        choices=("bash", "zsh"),
        action=PrintCompletion,
        help="print what completes pytest-precision in a shell, bash or zsh; needs shtab",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        import_module(f"pytest_precision.commands.{command}").add_to(commands)
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    # Everything after `--` belongs to a script.
    end = words.index("--") if "--" in words else len(words)
    named = argparse.Namespace(script=words[end + 1 :], words=words, began=monotonic())
    _expect_no_empty(parser, words[:end])
    options, others = parser.parse_known_args(words[:end], named)
    if others:
        takes_script = words[0] in RUN_A_SCRIPT and "--" not in words
        if takes_script and not others[0].startswith("-"):
            advice = f"write `-- {shlex.join(others)}` after the options of {words[0]}"
            options.parser.error(expected_but_got("a script after `--`", others[0], advice))
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    sweep_temporary_folder()  # of a command that was killed
    with WholeTorch().watching():
        return int(options.run(options))


def _expect_no_empty(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """End with an error if a word of ours is empty, as that of a variable which is not set."""
    for place, word in enumerate(words):
        option, equals, value = word.partition("=") if word.startswith("-") else ("", "=", word)
        if not equals or value.strip():
            continue
        before = words[place - 1] if place else ""
        label = option or (before if before.startswith("-") else "an argument")
        advice = "leave it out for the default; a variable in its place may not be set"
        parser.error(expected_but_got(f"a value for {label}", f"{value!r}", advice))


if __name__ == "__main__":
    sys.exit(main())
