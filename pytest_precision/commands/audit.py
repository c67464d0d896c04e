"""Check the model and optimizer that a function builds, without training.

Exit status 0, 1 if a finding is as bad as --fail-on says, 2 if it cannot be audited.
For several ranks: torchrun --nproc-per-node 2 -m pytest_precision audit package.module:build
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import importlib
import inspect
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pytest_precision.commands import add_command, say
from pytest_precision.errors import NoSetupError, expected_but_got, named
from pytest_precision.parity.plain_data import as_plain

if TYPE_CHECKING:
    from pytest_precision.auditing.audit import Audit
    from pytest_precision.report.sarif import SarifResult


BuiltAt = tuple[str, int]
"""The place of the function that builds model and optimizer: a relative path and a line."""

LEVELS = {"error": "error", "warning": "warning", "note": "notice"}
"""What GitHub calls a severity."""


def add_to(commands: Any) -> None:
    """Add the command `audit` and its options to the command line's parser."""
    text = "say what a model and its optimizer are stored, computed and updated in"
    parser = add_command(commands, "audit", run, text, __doc__)
    parser.add_argument(
        "build",
        metavar="MODULE:FUNCTION",
        help="a function without arguments that returns what a training loop is built of: "
        "(model, optimizer), with schedulers, data loaders and pipeline stages if there are any, "
        "or a dict of these",
    )
    parser.add_argument("--format", choices=[*FORMATS], default="text", help="(default: text)")
    parser.add_argument(
        "--fail-on",
        choices=["error", "warning", "never"],
        default="error",
        help="severity from which on the exit status is 1 (default: error)",
    )


def run(args: argparse.Namespace) -> int:
    """Check the model and optimizer that the named function builds, and return the exit status."""
    try:
        with _started_here(args.build), _printed_as_errors():
            build = _function(args.build)
            audit, is_first = _joint_audit(build)
    except NoSetupError as error:
        if error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        args.parser.error(str(error))
    if is_first:
        say("\n".join(FORMATS[args.format](audit, _place(build))))
    return int(args.fail_on != "never" and bool(audit.at_least(args.fail_on)))


@contextmanager
def _started_here(program: str) -> Iterator[None]:
    """Put the current folder on the import path and clear `sys.argv` during the block."""
    arguments = sys.argv
    sys.argv = [program]
    sys.path.insert(0, os.getcwd())  # as `python -m` has it, and an installed command has not
    try:
        yield
    finally:
        sys.argv = arguments
        sys.path.remove(os.getcwd())


@contextmanager
def _printed_as_errors() -> Iterator[None]:
    """Redirect standard output to standard error in the block, also of child processes."""
    sys.stdout.flush()
    descriptor = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()  # people's code may know it as `sys.__stdout__`
        ctypes.CDLL(None).fflush(None)  # what extensions print waits in a buffer of C's
        os.dup2(descriptor, 1)
        os.close(descriptor)


def _function(name: str) -> Callable[[], Any]:
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*(?<!\.py):[^\W\d]\w*", name):
        raise _setup_error(
            "MODULE:FUNCTION", name, "for build() in jobs/setup.py write jobs.setup:build"
        )
    place, _, function = name.partition(":")
    module = _module(place, name)
    attribute: Any = getattr(module, function, None)
    if not callable(attribute):
        functions = (key for key, value in vars(module).items() if inspect.isfunction(value))
        names = ", ".join(sorted(functions)) or "none"
        raise _setup_error(f"a function in {place}", name, f"the functions there: {names}")
    with suppress(ValueError):  # some of C have no signature
        try:
            inspect.signature(attribute).bind()
        except TypeError as error:
            advice = f"{error}: wrap it in a function that passes them"
            raise _setup_error("a function without arguments", name, advice) from None
    build: Callable[[], Any] = attribute
    return build


def _module(place: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except (Exception, SystemExit) as error:
        missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{place}.".startswith(f"{missing}."):  # else the module lacks another one
            advice = f"there is no {missing} in {os.getcwd()}, nor is it installed: set PYTHONPATH"
            raise _setup_error("a module that can be imported", name, advice) from None
        raise _setup_error(
            f"{place} to be imported", name, f"it raised {type(error).__name__}: {error}"
        ) from error


def _setup_error(expected: str, name: str, advice: str) -> NoSetupError:
    return NoSetupError(expected_but_got(expected, named("build", name), advice))


def _joint_audit(build: Callable[[], Any]) -> tuple[Audit, bool]:
    """Audit what `build` returns on each rank; return the audit, and whether this rank prints."""
    import torch.distributed as dist

    from pytest_precision.auditing.audit import audit_built

    before = dist.is_initialized()
    audit = audit_built(build)
    if before or not dist.is_initialized():
        return audit, True
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, audit)
    first = dist.get_rank() == 0
    dist.destroy_process_group()
    return type(audit).together(parts), first


def _place(build: Callable[[], Any]) -> BuiltAt:
    function = inspect.unwrap(build.func if isinstance(build, functools.partial) else build)
    source = (
        function if inspect.isfunction(function) or inspect.isclass(function) else type(function)
    )
    file = Path(inspect.getfile(source))
    folder = Path.cwd()
    inside = file.relative_to(folder) if file.is_relative_to(folder) else file
    return inside.as_posix(), inspect.getsourcelines(source)[1]


def _text(audit: Audit, _place: BuiltAt) -> list[str]:
    return [str(audit)]


def _json(audit: Audit, _place: BuiltAt) -> list[str]:
    return [json.dumps(as_plain(audit.as_dict()), indent=2, allow_nan=False)]


def _sarif(audit: Audit, place: BuiltAt) -> list[str]:
    from pytest_precision.report.sarif import log

    return [json.dumps(log(results(audit, place)), indent=2)]


def results(audit: Audit, place: BuiltAt) -> list[SarifResult]:
    """Return the findings as results of SARIF, located at the function that builds the model.

    Args:
        audit: whose findings they are.
        place: where all of them are shown.
    """
    from pytest_precision.auditing.audit import AUDIT_RULES
    from pytest_precision.report.sarif import SarifResult, SarifRule

    rules = {
        finding.rule: SarifRule(
            finding.rule,
            AUDIT_RULES[finding.rule],
            f"{finding.remedy[0].upper()}{finding.remedy[1:]}.",
        )
        for finding in audit.findings
    }
    return [
        SarifResult(rules[finding.rule], finding.severity, finding.message, place, finding.names)
        for finding in audit.findings
    ]


def _github(audit: Audit, place: BuiltAt) -> list[str]:
    from pytest_precision.report.annotations import at_most, workflow_command

    file, line = place
    lines = []
    for severity, level in LEVELS.items():
        commands = [
            workflow_command(level, finding.message, file=file, line=line, title=finding.rule)
            for finding in audit.findings
            if finding.severity == severity
        ]
        lines += at_most(commands, level, "precision audit", "finding", "of this kind")
    return lines


FORMATS: dict[str, Callable[[Audit, BuiltAt], list[str]]] = {
    "text": _text,
    "json": _json,
    "sarif": _sarif,
    "github": _github,
}
"""What the command can write."""
