"""Read report.json files: merge, render, summarize, annotate, count and compare them.

No command imports torch.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytest_precision._usage import usage_error
from pytest_precision._visible import visible
from pytest_precision.commands import add_command, add_force, note, say
from pytest_precision.errors import ReportError, expected_but_got
from pytest_precision.report.merge import merge
from pytest_precision.report.read import Report, read_report

WRITTEN = {"merge": "report.json or report.html", "html": "report.html"}
"""Subcommands that write files, and which."""

_STATUSES = "exit status 0, or 2 if a report cannot be read or a file not be written"
"""How each of them ends; `compare` has one more."""


def add_to(commands: Any) -> None:
    """Add the command `report` and its subcommands to the command line's parser."""
    parser = commands.add_parser(
        "report", help="merge, show and summarize reports", description=__doc__
    )
    subcommands = parser.add_subparsers(required=True, metavar="COMMAND")
    kinds: dict[str, tuple[str, Callable[[argparse.Namespace], str]]] = {
        "merge": ("write report.json and report.html of several reports", _merge),
        "html": ("write report.html next to report.json", _html),
        "summary": ("print Markdown for a job summary, at most 900 KiB", _summary),
        "annotations": ("print at most ten workflow commands of GitHub", _annotations),
        "sarif": ("print the reasons to fail in SARIF, for code scanning", _sarif),
        "history": ("print how each cell ended in reports, the oldest first", _history),
        "counts": ("print outcome, cells and failed, as lines NAME=VALUE", _counts),
    }
    for name, (text, make) in kinds.items():
        kind = add_command(subcommands, name, run, text, f"{text}; {_STATUSES}")
        words = "folder of an earlier report.json; say first what has changed since"
        if name == "summary":
            kind.add_argument("--since", metavar="OLD", type=Path, help=words)
        if name == "html":
            words += "; given several times, the oldest first, show how cells ended in all of them"
            kind.add_argument(
                "--since", metavar="OLD", type=Path, action="append", default=[], help=words
            )
        if name == "merge":
            kind.add_argument("--out", metavar="DIR", type=Path, required=True, help="a folder")
        if name in WRITTEN:
            add_force(kind, WRITTEN[name])
        kind.add_argument(
            "reports", metavar="DIR", nargs="+", type=Path, help="folder of a report.json"
        )
        kind.set_defaults(make=make)
    text = "print in Markdown what is new in a later report; exit status 1 if a failure is"
    kind = add_command(subcommands, "compare", compare, text, f"{text}; else {_STATUSES}")
    kind.add_argument("old", metavar="OLD", type=Path, help="folder of the earlier report.json")
    kind.add_argument("new", metavar="NEW", type=Path, help="folder of the later one")


def run(args: argparse.Namespace) -> int:
    """Run a subcommand of `report` on report.json files, and return the exit status."""
    with _refused(args, args.reports):
        text = args.make(args)
    say(text)
    return 0


@contextmanager
def _refused(args: argparse.Namespace, paths: Iterable[Path]) -> Iterator[None]:
    """End the process with exit status 2 where reports cannot be read, and name them.

    The schema says of each value what it may be, but not of each two how they belong together.
    """
    try:
        yield
    except (ReportError, OSError, usage_error()) as error:
        args.parser.error(visible(str(error)))
    except Exception as error:  # of a stranger's report, a reader may say anything
        got = f"{', '.join(map(str, paths))} ({type(error).__name__}: {error})"
        advice = "run pytest again, with --precision-report=DIR"
        args.parser.error(visible(expected_but_got("reports that hold together", got, advice)))


def compare(args: argparse.Namespace) -> int:
    """Print how two reports differ; return exit status 1 if the later one has a new failure."""
    from pytest_precision.report.changed_cells import ChangedCells

    with _refused(args, (args.old, args.new)):
        old_report, new_report = (Report.of(read_report(path)) for path in (args.old, args.new))
        changes = ChangedCells.of(old_report, new_report)
        text = "".join(changes.sections())
    say(text)
    return 1 if changes.new else 0


def _merged(args: argparse.Namespace) -> dict[str, Any]:
    return merge({str(path): read_report(path) for path in args.reports})


def _contents(args: argparse.Namespace) -> dict[str, Any]:
    """Return the content of the report that was named, or of several as one."""
    return _merged(args) if len(args.reports) > 1 else read_report(args.reports[0])


def _merge(args: argparse.Namespace) -> str:
    from pytest_precision.report.json_file import encode
    from pytest_precision.report.page.render import write_page
    from pytest_precision.report.report_files import expect_reports_free, report_in

    merged = _merged(args)
    expect_reports_free(args.out, "--out", args.force)
    args.out.mkdir(parents=True, exist_ok=True)
    report_in(args.out, args.force).put(encode(merged).decode() + "\n")
    lost = Report.of(merged).lost_shards
    if lost:
        note(f"not finished: {lost}")
    return str(write_page(args.out, force=args.force))


def _html(args: argparse.Namespace) -> str:
    from pytest_precision.report.page.render import write_page

    earlier_reports = [Report.of(read_report(path)) for path in args.since]
    return "\n".join(
        str(write_page(path, earlier_reports, force=args.force)) for path in args.reports
    )


def _summary(args: argparse.Namespace) -> str:
    from pytest_precision.report.summary import markdown_summary

    report = Report.of(_contents(args))
    if args.since is None:
        return markdown_summary(report)
    from pytest_precision.report.changed_cells import ChangedCells

    since = Report.of(read_report(args.since))
    return markdown_summary(report, first=ChangedCells.of(since, report).sections())


def _annotations(args: argparse.Namespace) -> str:
    from pytest_precision.report.annotations import workflow_commands

    return "\n".join(workflow_commands(Report.of(_contents(args))))


def _history(args: argparse.Namespace) -> str:
    from pytest_precision.report.past_reports import history_lines

    reports = [Report.of(read_report(path)) for path in args.reports]
    return "\n".join(history_lines(reports, [*map(str, args.reports)]))


def _sarif(args: argparse.Namespace) -> str:
    from pytest_precision.report.sarif import log, reasons

    return json.dumps(log(reasons(Report.of(_contents(args)))), indent=2)


def _counts(args: argparse.Namespace) -> str:
    from pytest_precision.report.summary import counts

    return counts(Report.of(_contents(args)))
