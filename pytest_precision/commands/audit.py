"""Audit what a function builds, a model and its optimizer: nothing is trained.

Exit status 0, 1 if a finding is as bad as --fail-on says, 2 if there is nothing to audit.
For several ranks: torchrun --nproc-per-node 2 -m pytest_precision audit package.module:build
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_precision.errors import NoSetupError, expected_but_got, named

if TYPE_CHECKING:
    from pytest_precision.auditing.audit import Audit
    from pytest_precision.auditing.sarif import BuiltAt

LEVELS = {"error": "error", "warning": "warning", "note": "notice"}
"""What GitHub calls a severity."""


def add_to(commands: Any) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "audit",
        help="say what a model and its optimizer are stored, computed and updated in",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
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
    parser.set_defaults(run=run, parser=parser)


def run(given: argparse.Namespace) -> int:
    """Audit; return the exit status.

    Raises:
        Exception: whatever the function raises.
    """
    try:
        build = _function(given.build)
        found, is_first = _audited(build)
    except NoSetupError as error:
        given.parser.error(str(error))
    if is_first:
        print("\n".join(FORMATS[given.format](found, _place(build))))
    return int(given.fail_on != "never" and bool(found.at_least(given.fail_on)))


def _function(name: str) -> Callable[[], Any]:
    module, _, function = name.partition(":")
    sys.path.insert(0, os.getcwd())  # as `python -m` has it, and an installed command has not
    try:
        found: Any = getattr(importlib.import_module(module), function, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # it is the module that lacks another one
        found = None
    finally:
        sys.path.remove(os.getcwd())
    if not callable(found):
        raise NoSetupError(
            expected_but_got(
                "a function in a module that can be imported",
                named("build", name),
                "write package.module:function",
            )
        )
    made: Callable[[], Any] = found
    return made


def _audited(build: Callable[[], Any]) -> tuple[Audit, bool]:
    """Return what all ranks found, and whether this is the one that says so."""
    import torch.distributed as dist

    from pytest_precision.auditing.audit import audit_built

    before = dist.is_initialized()
    found = audit_built(build)
    if before or not dist.is_initialized():
        return found, True
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, found)
    first = dist.get_rank() == 0
    dist.destroy_process_group()
    return type(found).together(parts), first


def _place(build: Callable[[], Any]) -> BuiltAt:
    from pytest_precision.auditing.sarif import BuiltAt

    own = inspect.unwrap(build)
    code = getattr(own, "__code__", None)
    if code is None:
        return BuiltAt("", 1)
    file = Path(code.co_filename)
    here = Path.cwd()
    inside = file.relative_to(here) if file.is_relative_to(here) else file
    return BuiltAt(inside.as_posix(), code.co_firstlineno)


def _text(audit: Audit, _place: BuiltAt) -> list[str]:
    return [str(audit)]


def _json(audit: Audit, _place: BuiltAt) -> list[str]:
    return [json.dumps(audit.as_dict(), indent=2)]


def _sarif(audit: Audit, place: BuiltAt) -> list[str]:
    from pytest_precision.auditing.sarif import sarif

    return [json.dumps(sarif(audit, place), indent=2)]


def _github(audit: Audit, place: BuiltAt) -> list[str]:
    from pytest_precision.report.annotations import at_most, workflow_command

    lines = []
    for severity, level in LEVELS.items():
        found = [
            workflow_command(level, one.message, file=place.file, line=place.line, title=one.rule)
            for one in audit.findings
            if one.severity == severity
        ]
        lines += at_most(found, level, "precision audit", "finding", "of this kind")
    return lines


FORMATS: dict[str, Callable[[Audit, BuiltAt], list[str]]] = {
    "text": _text,
    "json": _json,
    "sarif": _sarif,
    "github": _github,
}
"""What the command can write."""
