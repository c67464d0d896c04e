"""Write GitHub annotations: one per reason to fail, shown at the line of code that caused it.

That is the line of the culprit, if it is known and in the project, so that a pull request shows the
failure where it was made; else that of the test.
"""

from __future__ import annotations

from pytest_precision._visible import visible
from pytest_precision.report.read import Report
from pytest_precision.report.reasons import Reason, fold
from pytest_precision.report.status import FAILING, count

MOST_ANNOTATIONS = 10
"""Errors that GitHub shows of one step; further ones are dropped without a word."""


def workflow_commands(report: Report) -> list[str]:
    """Return a report's failures as GitHub annotations, at most 10; the last counts the rest."""
    commands = [_annotation(reason) for reason in fold(report.cells, FAILING)]
    if not report.finished:
        unfinished = f"not finished: {report.ran}"
        commands.insert(0, workflow_command("error", unfinished, title="precision matrix"))
    return at_most(commands, "error", "precision matrix", "reason", "to fail: see report.html")


def at_most(commands: list[str], level: str, title: str, noun: str, words: str) -> list[str]:
    """Return at most 10 GitHub annotations of one level; the last one counts those left out.

    Args:
        commands: one per thing.
        level: that of all of them.
        title: of the last one.
        noun: what a thing is called.
        words: what follows the number of things.
    """
    if len(commands) <= MOST_ANNOTATIONS:
        return commands
    more = count(len(commands) - MOST_ANNOTATIONS + 1, f"more {noun}")
    return [
        *commands[: MOST_ANNOTATIONS - 1],
        workflow_command(level, f"{more} {words}", title=title),
    ]


def workflow_command(level: str, text: str, **properties: object) -> str:
    """Return one line that GitHub shows as an annotation.

    Args:
        level: `error`, `warning` or `notice`.
        text: any text; nothing in it is a command.
        properties: `file`, `line`, `title`.
    """
    options = ",".join(f"{name}={_property(str(value))}" for name, value in properties.items())
    return f"::{level} {options}::{_escaped(text)}"


def _annotation(reason: Reason) -> str:
    file, line = reason.place
    return workflow_command(
        "error",
        "\n".join(reason.lines),
        file=file,
        line=line,
        title=f"{reason.times}{reason.cells[0].test.rpartition('::')[2]}",
    )


def _escaped(text: str) -> str:
    return visible(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")
