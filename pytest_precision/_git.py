"""Run git in a repository of the user's: the only place that starts git."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

from pytest_precision.errors import RevisionError, expected_but_got

_UNHOOKED = (
    "--no-optional-locks",  # somebody may be working in the repository
    *("-c", f"core.hooksPath={os.devnull}"),
    *("-c", "core.fsmonitor=false"),
    *("-c", "log.showSignature=false"),
)
"""Options with which git starts no program that the repository's configuration names.

Filters are left, since the files of a commit would be others without them."""

_FAULTS = ("fatal: ", "error: ")


def git(folder: Path, *words: str, seconds: float | None = None) -> str:
    """Run git in a folder, without the repository's hooks; return what it prints.

    Args:
        folder: where it runs.
        words: its arguments, the first of which is git's command.
        seconds: time that it has; without a limit by default.

    Raises:
        RevisionError: it failed, or took longer; the message has what git says.
    """
    done = _done(("git", "-C", str(folder), *_UNHOOKED, *words), _environment(), seconds)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        faults = [line for line in lines if line.startswith(_FAULTS)]
        raise RevisionError(f"git {words[0]}: {'; '.join(faults or lines[-1:])}")
    return done.stdout.removesuffix("\n")


def _environment() -> dict[str, str]:
    """Return this process's environment without what sends git to another repository.

    A hook that runs this command has such variables, which name the hook's own repository.
    """
    return {name: value for name, value in os.environ.items() if name not in _of_a_repository()}


@functools.cache
def _of_a_repository() -> frozenset[str]:
    """Return the variables that git itself calls those of one repository, but its configuration.

    In CI, the configuration by variables is where `safe.directory` comes from.
    """
    names = _done(("git", "rev-parse", "--local-env-vars"), None, None).stdout.split()
    return frozenset(name for name in names if not name.startswith("GIT_CONFIG"))


def _done(
    words: tuple[str, ...], environment: dict[str, str] | None, seconds: float | None
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            words,
            capture_output=True,
            encoding=sys.getfilesystemencoding(),  # paths are text of it
            errors="surrogateescape",
            stdin=subprocess.DEVNULL,
            env=environment,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        expected = f"git to answer within {seconds:g} s"
        raise RevisionError(expected_but_got(expected, "no answer", "try again")) from error
    except OSError as error:
        raise RevisionError(
            expected_but_got("git to start", f"{error.strerror}", "install git")
        ) from error
