"""Compare two recordings: exit status 0 if they agree, 1 if not, 2 if they cannot be compared."""

from __future__ import annotations

import argparse
import ast
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from pytest_precision._progress import shown
from pytest_precision._usage import usage_error
from pytest_precision._visible import visible
from pytest_precision.commands import add_command, add_force, add_quiet, note, say
from pytest_precision.commands._arguments import count_of, place_argument
from pytest_precision.errors import RecordingError, expected_but_got
from pytest_precision.parity.compare.calls import CALLS, on_the_command_line
from pytest_precision.parity.compare.criterion import Criterion
from pytest_precision.parity.verdict import Verdict

if TYPE_CHECKING:
    from pytest_precision.check.terms import Terms

REPORT = "--report"

CANNOT_BE_COMPARED = 2
"""Exit status; 0 says that the sides agree, 1 that they do not."""

INTERRUPTED = 130
"""Exit status after Ctrl-C, as of a shell."""

FEW = 5
"""Lines about what is not compared that are printed unless all are asked for."""


def add_to(commands: Any) -> None:
    """Add the command `compare` and its options to the command line's parser."""
    parser = add_command(commands, "compare", run, "compare two recordings", __doc__)
    parser.add_argument(
        "candidate", type=place_argument, help="folder or address of the recording under test"
    )
    words = "folder or address of the one that it must agree with"
    parser.add_argument("reference", type=place_argument, help=words)
    add_judging_options(parser)
    add_json(parser)
    add_quiet(parser)
    parser.add_argument(
        "--from",
        dest="first_step",
        metavar="N",
        type=count_of,
        default=1,
        help="compare a candidate that was resumed: its first step with step N of the reference",
    )
    parser.add_argument(
        "--ranks",
        action="store_true",
        help="also say on which host and device each rank ran, with the UUID of a GPU",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option `--json` to the parser of a command whose output is verdicts alone."""
    parser.add_argument(
        "--json",
        action="store_true",
        help="print each verdict as a line of JSON, with the keys of a check in report.json",
    )


def add_judging_options(parser: argparse.ArgumentParser) -> None:
    """Add options to a parser: how equal tensors must be, and what is printed on a comparison."""
    parser.add_argument(
        "--criterion",
        metavar="[KIND[:NAMES]=]CRITERION",
        action="append",
        default=[],
        help="how equal tensors must be: 'ulp(2)', 'exp_avg:*.bias=close(rtol=1e-5, atol=0)', "
        "'loss=unchecked(reason=\"other batches\")'; repeatable (default: bitwise())",
    )
    parser.add_argument(
        REPORT,
        metavar="DIR",
        type=Path,
        help="write report.json and a page there",
    )
    add_force(parser, "a report.json or report.html of --report")
    parser.set_defaults(json=False)  # unless `add_json` adds the option
    much = parser.add_mutually_exclusive_group()
    much.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="print everything: figures, bounds that would pass, and what is not compared",
    )
    much.add_argument(
        "--brief",
        action="store_true",
        help="print only whether they agree, or what differs first and the line that made it",
    )


def run(args: argparse.Namespace) -> int:
    """Compare two recordings, print the verdict, and return the exit status."""
    from pytest_precision.check.compare import compare_recordings

    try:
        terms = terms_of(args)
        expect_report_free(args)
        words = [str(args.candidate), str(args.reference)]
        options = [word for text in args.criterion for word in ("--criterion", text)]
        repeat = shlex.join(["python", "-m", "pytest_precision", "compare", *words, *options])
        name = " against ".join(words)
        if args.first_step > 1:
            name += f" from step {args.first_step}"
            repeat += f" --from {args.first_step}"
        with shown(visible(name), quiet=args.quiet, bar=True):
            verdict = compare_recordings(
                args.candidate,
                args.reference,
                terms,
                name,
                repeat=repeat,
                first_step=args.first_step,
                ranks=args.ranks,
            )
        status = show(args, verdict)
        if args.ranks and not args.json:
            say(visible("\n".join(_places(verdict))))
        return status
    except KeyboardInterrupt:
        note("stopped: nothing was written, and both recordings are as they were")
        return INTERRUPTED
    except (argparse.ArgumentTypeError, RecordingError, ValueError, usage_error()) as error:
        args.parser.error(visible(str(error)))
        raise  # it has ended this process


def _places(verdict: Verdict) -> Iterator[str]:
    """Yield a line for each rank of both recordings: where it ran."""
    for side, facts in verdict.recorded.items():
        yield from (f"  {side}: {place}" for place in facts["ranks"])


def terms_of(args: argparse.Namespace) -> Terms:
    """Return the terms of a comparison from the command line: how equal tensors must be."""
    from pytest_precision.check.terms import Terms

    criteria = dict(map(keyed_criterion, args.criterion))
    return Terms.of(criteria or None)._replace(write=on_the_command_line)


def show(args: argparse.Namespace, verdict: Verdict) -> int:
    """Print a verdict, write its report if asked for, and return the exit status."""
    if args.report is not None:
        passed = monotonic() - args.began
        write_report(args.report, verdict, passed, force=args.force)
    if args.json:
        say(json.dumps(verdict.as_dict()))
    else:
        say(visible("\n".join(lines(verdict, verbose=args.verbose, brief=args.brief))))
    return {"pass": 0, "error": CANNOT_BE_COMPARED}.get(verdict.outcome, 1)


def lines(verdict: Verdict, *, verbose: bool = False, brief: bool = False) -> list[str]:
    """Return the lines that are printed for the outcome of a comparison."""
    if brief:
        return _brief(verdict)
    if verdict.outcome != "pass":
        if verbose or not verdict.brief:
            return [verdict.reason, *verdict.details]
        return [verdict.reason, *verdict.brief]
    size = (
        f"{verdict.observations} tensors in {verdict.axes['sequence'].removeprefix('train')} steps"
    )
    agreed = f"{verdict.nodeid}: {size} agree; criterion {verdict.criterion}"
    left_out = [f"{kind} is not compared: {why}" for kind, why in (verdict.left_out or {}).items()]
    if len(left_out) > FEW and not verbose:
        left_out = [
            *left_out[:FEW],
            f"and {len(left_out) - FEW} more; -v shows all",
        ]
    noticed = [f"noticed: {note}" for note in verdict.notes or ()]
    return [agreed, *(f"  {line}" for line in (*verdict.details, *left_out, *noticed))]


def _brief(verdict: Verdict) -> list[str]:
    """Return a verdict in one or two lines: the difference, and the line of code that made it."""
    if verdict.outcome == "pass":
        return [f"{verdict.nodeid}: {verdict.observations} tensors agree"]
    return [verdict.reason, *([f"  {verdict.culprit.text}"] if verdict.culprit else [])]


def expect_report_free(args: argparse.Namespace) -> None:
    """Raise unless the files of `--report`, if it is given, can be written; nothing is run before.

    Raises:
        pytest.UsageError: there are files of another tool.
    """
    if args.report is not None:
        from pytest_precision.report.report_files import expect_reports_free

        expect_reports_free(args.report, REPORT, args.force)


def write_report(folder: Path, verdict: Verdict, passed: float, *, force: bool = False) -> None:
    """Write report.json and report.html on one comparison into a folder.

    Args:
        folder: the folder.
        verdict: on the comparison.
        passed: seconds that the command has taken.
        force: see `Destination`.

    Raises:
        pytest.UsageError: they cannot be written.
    """
    from pytest_precision.report.json_file import JsonFile
    from pytest_precision.report.page.render import write_page
    from pytest_precision.report.provenance import environment, session_run
    from pytest_precision.report.report_files import unusable

    provenance = environment(device="", flags={}) | {"runs": [session_run(None)]}
    file = JsonFile(folder, provenance, option=REPORT, force=force, passed=passed)
    file.plan(1)
    file.put(verdict.nodeid, [verdict.as_dict()])
    file.close()
    if file.problem:
        raise usage_error()(file.problem)
    try:
        write_page(folder, force=force)
    except OSError as error:
        raise unusable(folder, REPORT, error) from error


_KEYED = re.compile(r"(?:(?P<key>[^=()]+)=)?(?P<call>\w+\(.*\))", re.DOTALL)


def keyed_criterion(text: str) -> tuple[str, Criterion]:
    """Parse a `--criterion`: to which tensors it applies, and how equal these must be.

    Raises:
        argparse.ArgumentTypeError: it names none.
    """
    match = _KEYED.fullmatch(text)
    try:
        if match is None:
            raise ValueError("a criterion is written as a call, such as ulp(2)")
        return match["key"] or "default", _criterion_called(match["call"])
    except (SyntaxError, TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(
            expected_but_got(
                "[KIND[:NAMES]=]CRITERION, such as exp_avg=ulp(2),",
                f"{text!r}: {error}",
                f"criteria are {', '.join(sorted(CALLS))}",
            )
        ) from None


def _criterion_called(text: str) -> Criterion:
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call) or ast.unparse(call.func) not in CALLS:
        raise ValueError("there is no such criterion")
    arguments = [_plain(argument) for argument in call.args]
    options = {keyword.arg or "**": _plain(keyword.value) for keyword in call.keywords}
    return CALLS[ast.unparse(call.func)](*arguments, **options)


def _plain(argument: ast.expr) -> object:
    try:
        return ast.literal_eval(argument)
    except ValueError:
        raise ValueError(f"{ast.unparse(argument)} is neither a number nor a quoted text") from None
