"""The common part of commands that record a script in several commits and compare."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from pytest_precision._progress import shown
from pytest_precision._usage import usage_error
from pytest_precision._visible import visible
from pytest_precision.commands import note
from pytest_precision.commands.compare import (
    add_judging_options,
    expect_report_free,
    lines,
    show,
    terms_of,
)
from pytest_precision.commands.record import add_recording_options, expect_script
from pytest_precision.errors import RecordingError, RevisionError
from pytest_precision.parity.culprit import Culprit
from pytest_precision.parity.verdict import Verdict
from pytest_precision.revisions.changed_lines import hunk_of
from pytest_precision.revisions.installation import Installation
from pytest_precision.revisions.peers import tell_launcher
from pytest_precision.revisions.sides import Sides

_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_STOPPED = [128 + number for number in _ENDINGS]


def _exit(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)


def _twice_more(step: str) -> str:
    """Say why both sides are recorded once more."""
    purpose = "with all operations, to name the line"
    return f"the two part at step {step}: both are recorded again up to it, {purpose}"


def _verdict(
    candidate: Path, reference: Path, terms: Any, nodeid: str, repeat: str, quiet: bool
) -> Verdict:
    """Compare two recordings, in whichever process has imported what that needs."""
    from pytest_precision.check.compare import compare_recordings

    with shown(visible(f"comparing {nodeid}"), quiet=quiet, bar=True):
        return compare_recordings(candidate, reference, terms, nodeid, repeat=repeat)


class Against:
    """A command that records a script in several commits and compares the recordings.

    Args:
        args: the command line.
        checks: whether a node id of pytest may take the place of the script.

    Attributes:
        args: the command line.
        of_check: whether the command line names a test.
        sides: records, while the command runs.
    """

    sides: Sides

    def __init__(self, args: argparse.Namespace, *, checks: bool = False) -> None:
        self.args = args
        self.of_check = checks and "::" in "".join(args.script[:1])
        expect_script(args, of_check=self.of_check)

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        """Add the options of `record` and of `compare`, and `--link`, to a command's parser."""
        parser.add_argument(
            "--link",
            metavar="PATH",
            type=Path,
            action="append",
            default=[],
            help="untracked file or folder of the repository that every commit needs, such as "
            "data; repeatable",
        )
        add_recording_options(parser)
        add_judging_options(parser)

    def run(self, body: Callable[[Against], int]) -> int:
        """Call `body` to run a command, remove its temporary files, and return the exit status."""
        args = self.args
        # From Ctrl-C, a runner that cancels a job, or a terminal that is closed: what was made is
        # removed, and where this command was at that moment is of no interest.
        heeded = [number for number in _ENDINGS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, _exit) for number in heeded}
        try:
            self._terms = terms_of(args)
            expect_report_free(args)
            with ExitStack() as stack:
                self.sides = Sides(
                    args.script, [*self._options()], args.link, stack, quiet=args.quiet
                )
                return body(self)
        except (
            argparse.ArgumentTypeError,
            RecordingError,
            RevisionError,
            ValueError,
            usage_error(),
        ) as error:
            text = visible(str(error))
            tell_launcher(text)
            args.parser.error(text)
            raise  # it has ended this process
        except SystemExit as end:
            if end.code in _STOPPED:
                note("stopped: its recordings and work trees are removed, and nothing stays")
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def compared(
        self, candidate: Path, reference: Path, name: str, other: str, *, lines: bool = False
    ) -> Verdict:
        """Compare two recordings tensor by tensor, and return the verdict.

        Args:
            candidate: folder of the recording under test.
            reference: folder of the one that it must agree with.
            name: what the candidate is called.
            other: what the reference is called.
            lines: whether the line of a difference is looked for, in recordings of operations.
        """
        nodeid = f"{self.args.script[0]}: {name} against {other}"
        # Only here, so that the help of a command does not import what reads recordings.
        from pytest_precision.trace.manifest import started_by

        command = shlex.join([*started_by(self.sides.peers.world_size), *self.args.words])
        terms = self._terms._replace(lines=lines)
        call = partial(_verdict, candidate, reference, terms, nodeid, command, self.args.quiet)
        verdict: Verdict = self.sides.servers.call(call, self.sides.folder / "verdict")
        return replace(verdict, candidate=name, reference=other)

    def judge(
        self, candidate: Installation, reference: Installation, ours: str, theirs: str
    ) -> int:
        """Compare two recordings, print the verdict, and return the exit status.

        Where they part, both are recorded once more up to that step, with all their operations, so
        that the verdict names the line.

        Args:
            candidate: what is under test.
            reference: what it must agree with.
            ours: name of the candidate's recording.
            theirs: name of the reference's recording.
        """
        peers = self.sides.peers
        verdicts: list[Verdict] = []

        def between(ours: str, theirs: str, *, lines: bool) -> Verdict:
            folders = self.sides.folder / ours, self.sides.folder / theirs
            return self.compared(*folders, candidate.name, reference.name, lines=lines)

        def parted() -> str:
            """Compare both recordings; return the first differing step as text, empty if none."""
            verdicts.append(between(ours, theirs, lines=False))
            divergence = verdicts[0].divergence
            return "" if divergence is None else str(max(1, divergence.step))

        step = peers.agree(f"parted/{theirs}", parted)
        if step:
            if not peers.rank and not self.args.quiet:
                note(_twice_more(step))
            logged = ("--steps", step, "--lines", "--values", f"0-{step}")
            self.sides.record(candidate, f"{ours}-lines", logged)
            self.sides.record(reference, f"{theirs}-lines", logged, "reference")

        def judged() -> str:
            (verdict,) = verdicts
            if step:
                logged = between(f"{ours}-lines", f"{theirs}-lines", lines=True)
                ruling = replace(verdict.ruling, culprit=logged.culprit)
                figures = dict(verdict.figures) | self._hunk(candidate, reference, ruling.culprit)
                verdict = replace(verdict, ruling=ruling, figures=figures)
            status = show(self.args, verdict)
            if status:
                shown_lines = lines(verdict, verbose=self.args.verbose, brief=self.args.brief)
                tell_launcher(visible("\n".join(shown_lines)))
            return f"{status} " + visible("\n".join(lines(verdict, brief=True)))

        status, _, brief = peers.agree(f"verdict/{theirs}", judged).partition(" ")
        if int(status) and peers.rank:
            tell_launcher(brief)
        return int(status)

    def _hunk(
        self, candidate: Installation, reference: Installation, culprit: Culprit | None
    ) -> dict[str, str]:
        """Return the figure `hunk`: what git says of the line of a culprit, if it is changed."""
        if culprit is None or culprit.outside or not culprit.file or not culprit.line:
            return {}
        if reference.places is None:  # it is no commit
            return {}
        repository = self.sides.repository
        places = (Path.cwd() / culprit.file, repository / culprit.file)
        file = next((place for place in places if place.is_file()), places[0])
        hunk = hunk_of(repository, candidate, reference, file.resolve(), culprit.line)
        return {"hunk": hunk} if hunk else {}

    def _options(self) -> Iterator[str]:
        args = self.args
        yield from ("--steps", str(args.steps), "--te", args.te)
        # A tolerance needs the values of all steps.
        every = () if self._terms.criteria.bitwise else (range(args.steps + 1),)
        values = args.values or every
        if values:
            # In a word, which the system limits, a range takes as much as its ends.
            yield from ("--values", ",".join(f"{steps[0]}-{steps[-1]}" for steps in values))
        for kind in args.see:
            yield from ("--see", kind)
