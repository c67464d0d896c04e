"""The commands of `python -m pytest_precision`, which run without pytest: one module each."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pytest_precision._visible import visible


def add_command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], int],
    text: str,
    description: str | None,
    usage: str | None = None,
) -> argparse.ArgumentParser:
    """Add a command to the command line, and return its parser, to which the caller adds options.

    Args:
        commands: the subparsers of the command line.
        name: of the command.
        run: runs it, and returns the exit status.
        text: what it does, in a line.
        description: what its help says; several lines are shown as they are written.
        usage: how it is called, where argparse cannot say that.
    """
    as_it_is = argparse.RawDescriptionHelpFormatter
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        usage=usage,
        description=description,
        formatter_class=as_it_is if "\n" in (description or "") else argparse.HelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run, parser=parser)
    return parser


def add_force(parser: argparse.ArgumentParser, files: str) -> None:
    """Add the option `--force` to the parser of a command that writes files.

    Args:
        parser: of the command.
        files: which ones it writes.
    """
    words = f"replace {files} even if pytest-precision did not make it"
    parser.add_argument("--force", action="store_true", help=words)


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """Add the option `--quiet` to the parser of a command that takes long."""
    words = "do not say on standard error what is done and how far it has come"
    parser.add_argument("-q", "--quiet", action="store_true", help=words)


def is_first_rank() -> bool:
    """Return whether this process speaks for its launch: torchrun's or Slurm's first, or alone."""
    return (os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0") == "0"


def note(text: str) -> None:
    """Print a line on what goes on to standard error, unless nobody reads there any more."""
    with suppress(OSError, ValueError):
        print(f"pytest_precision: {visible(text)}", file=sys.stderr, flush=True)


def say(text: str) -> None:
    """Print text to standard output, without an error if a reader such as `head` has ended.

    A character that the terminal's encoding lacks is printed as its escape sequence.
    """
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:
        # Python writes what is left when it ends, and would say that it cannot.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
