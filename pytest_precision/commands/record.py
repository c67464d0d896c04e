"""Run a training script for some train steps, and store the tensors of these in a folder.

Exit status 0 if they are recorded, 2 if they cannot be, else that of the script.
To record several ranks: torchrun --nproc-per-node 2 -m pytest_precision record --out DIR -- ...
"""

from __future__ import annotations

import argparse
import errno
import os
import shlex
import socket
import sys
import threading
from itertools import chain
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from pytest_precision._interrupts import uncollected
from pytest_precision._progress import shown
from pytest_precision._visible import visible
from pytest_precision.commands import add_command, add_quiet, is_first_rank, note
from pytest_precision.commands._arguments import count_of, place_argument, steps_of
from pytest_precision.commands._out import (
    NEW_FOLDER,
    add_out,
    expect_empty,
    folder_for,
    report_unfinished,
    say_recorded,
    size_of_first_rank,
)
from pytest_precision.commands._threads import leave_threads
from pytest_precision.commands._watched import add_watch_options, watch_script
from pytest_precision.errors import RecordingError, expected_but_got, named
from pytest_precision.ranks.code.python_path import without_own_entry
from pytest_precision.ranks.code.relocation import expect_moved, move_imports
from pytest_precision.ranks.te_stand_in import stand_in, stand_in_running
from pytest_precision.trace.remote_folder import OutFolder

STEPS = 10
"""Train steps that are recorded unless `--steps` says otherwise."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says where a file may not grow."""

DIGESTS = ("lin8-128", "xxh3-128")
"""Names of `named_digests`, which imports torch."""

FORWARD_RECORDER = "pytest_precision.rollout.forward_recording:record_forwards"
"""Path of what records the forwards of a script."""


def add_to(commands: Any) -> None:
    """Add the command `record` and its options to the command line's parser."""
    parser = add_command(
        commands,
        "record",
        run,
        "record the train steps of a script",
        __doc__,
        "%(prog)s --out DIR [OPTION ...] -- train.py [ARGUMENT ...]\n"
        "       %(prog)s --watch [N] [OPTION ...] -- train.py [ARGUMENT ...]",
    )
    add_out(
        parser, f"{NEW_FOLDER}, or an address of fsspec, such as s3://bucket/run", place_argument
    )
    parser.set_defaults(out=None)
    add_recording_options(parser)
    add_watch_options(parser)
    parser.add_argument(
        "--lines",
        metavar="RANKS",
        type=count_of,
        nargs="?",
        const=1,
        default=0,
        help="also log all tensor operations, so that a comparison names the line of your code "
        "that made the first wrong value; a step takes at most 2.5 times as long; give "
        "RANKS, their number, if the other side splits its tensors over ranks",
    )
    _add_part_options(parser)
    parser.add_argument(
        "--digest",
        choices=DIGESTS,
        default=DIGESTS[0],
        help="digest of tensors: lin8-128 (the default) is that of the whole tensor whoever holds "
        "which shard of it and on which device; xxh3-128 takes half the time of whole tensors on "
        "a CPU, and is compared with its like alone",
    )
    # Of a command that records in folders of its own.
    parser.add_argument("--moved", nargs=2, type=Path, default=(), help=argparse.SUPPRESS)
    parser.add_argument("--label", help=argparse.SUPPRESS)


def _add_part_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that record other parts of a run, such as --forward and --only."""
    parser.add_argument(
        "--forward",
        action="store_true",
        help="record the forwards without gradients in place of train steps, each as a step: of a "
        "script that scores or generates, whether or not it trains",
    )
    parser.add_argument(
        "--honest-ways",
        action="store_true",
        help="with --forward, also measure how far correct ways to score the same tokens are "
        "apart, which `--criterion 'logprob=noise()'` of a comparison allows",
    )
    parser.add_argument(
        "--only",
        metavar="PATTERN",
        action="append",
        default=[],
        help="record only tensors of these names, such as 'layers.0.*', besides losses, norms and "
        "learning rates; repeatable",
    )
    parser.add_argument(
        "--every",
        metavar="N",
        type=count_of,
        default=1,
        help="record tensors in step 1, in every N-th step after it and in the last; losses, norms "
        "and learning rates in all steps",
    )


def add_recording_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a recording: --steps, --te, --values, --see and --quiet."""
    add_quiet(parser)
    parser.add_argument(
        "--steps",
        metavar="N",
        type=count_of,
        default=STEPS,
        help=f"end the script after so many train steps (default: {STEPS})",
    )
    parser.add_argument(
        "--te",
        choices=["auto", "cpu", "off"],
        default="off",
        help="run Transformer Engine on the CPU, over a stand-in for its kernels: where that is "
        "possible, always, or never (the default)",
    )
    parser.add_argument(
        "--values",
        metavar="STEPS",
        type=steps_of,
        default=(),
        help="keep the values of these steps, such as 0,3-5, and not only digests; 0 is the start",
    )
    parser.add_argument(
        "--see",
        choices=["grad"],
        action="append",
        default=[],
        help="also keep gradients as each backward leaves them, before any reduction",
    )


def run(args: argparse.Namespace) -> int:
    """Record the train steps of a script, and return the exit status.

    Raises:
        Exception: whatever the script raises.
    """
    expect_script(args)
    if args.watch or args.replay:
        return watch_script(args)
    _expect_steps(args)
    if args.honest_ways and not args.forward:
        args.parser.error(expected_but_got("--forward with --honest-ways", "none", "add it"))
    expect_empty(args)
    _let_stand_in(args)
    before = threading.enumerate()
    script = args.script[0]
    speaks = is_first_rank() and not args.quiet
    with (
        folder_for(args) as out,
        without_own_entry(),
        shown(visible(args.label or script), quiet=not speaks),
    ):
        if args.moved:
            move_imports(*args.moved)
        done = _record_script(args, out)
        # The first rank still removes files of its own, and says alone how large they are.
        size = size_of_first_rank(out.path) if speaks else 0
    if args.moved:
        expect_moved(*args.moved)
    noun = "forward" if args.forward else "step"
    if done < args.steps:
        note(f"{script} ended after {done} {noun}s, of {args.steps} to record")
    if speaks and args.label is None:
        say_recorded(args.out, size, script, done, noun)
    leave_threads(before)
    return 0


def _record_script(args: argparse.Namespace, out: OutFolder) -> int:
    """Record the script into a folder; return the number of its train steps.

    Raises:
        Exception: whatever the script raises.
    """
    # What the loop holds is looked for among all objects that can be collected: the script's alone.
    with uncollected():
        from pytest_precision.recorders.scripts.loop_trace import NotWrittenError
        from pytest_precision.recorders.scripts.recorded_part import NothingRecordedError
        from pytest_precision.recorders.scripts.script_file import record_file, report_script_alone

    parser: argparse.ArgumentParser = args.parser
    file, *arguments = args.script
    try:
        if args.forward:
            forwards = resolve_name(FORWARD_RECORDER)  # of scores, loaded for this option alone
            options = {"measures": args.honest_ways}
            return int(forwards(Path(file), arguments, out.path, args.steps, **options))
        return record_file(
            Path(file),
            arguments,
            out,
            args.steps,
            tuple(dict.fromkeys(chain(*args.values))),
            local_grads=bool(args.see),
            lines=args.lines,
            only=args.only,
            every=args.every,
            digest_name=args.digest,
        )
    except (NothingRecordedError, RecordingError) as error:
        parser.error(visible(str(error)))
    except NotWrittenError as error:
        if error.errno == errno.EEXIST:
            began = f"--out={args.out}, in which another one began {Path(error.filename).name}"
            advice = "name another; two recordings in one folder would be a mixture of both"
            parser.error(expected_but_got("a folder for this recording alone", began, advice))
        if error.errno not in _NO_ROOM:
            raise
        advice = "make room, and record it again into another folder"
        room = f"room for a recording in {args.out}{_place()}"
        parser.error(expected_but_got(room, error, advice))
    except (Exception, KeyboardInterrupt):
        report_script_alone(file)
        report_unfinished(out.path, args.out)
        raise


def _place() -> str:
    """Return which rank this is and on which host, in words; nothing of a single one."""
    rank = os.environ.get("RANK", "0")
    several = os.environ.get("WORLD_SIZE", "1") != "1"
    return f" (rank {rank} on {socket.gethostname()})" if several else ""


def expect_script(args: argparse.Namespace, *, of_check: bool = False) -> None:
    """End with an error if the command line names no script, or no file that exists.

    Args:
        args: the command line.
        of_check: whether the script is a node id of pytest.
    """
    if not args.script:
        args.parser.error(expected_but_got("a script", "none", "write it after `--`"))
    file = args.script[0]
    if file.startswith("-m"):
        words = [word for word in (file[2:], *args.script[1:]) if word]
        module, *words = words or ["package.train"]
        args.parser.error(
            expected_but_got(
                "a script file",
                f"-m {module}",
                "make a file run.py with this line: import runpy; "
                f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True); and write "
                f"`-- {shlex.join(['run.py', *words])}`",
            )
        )
    if not Path(file.partition("::")[0] if of_check else file).is_file():
        args.parser.error(expected_but_got("a script file", named("script", file), "name a file"))


def _expect_steps(args: argparse.Namespace) -> None:
    """End with an error if --values names a step after the last recorded one."""
    beyond = [max(steps[0], args.steps + 1) for steps in args.values if steps[-1] > args.steps]
    if beyond:
        expected = f"--values up to the last step, {args.steps},"
        advice = "name steps up to it, or record more --steps"
        args.parser.error(expected_but_got(expected, beyond[0], advice))


def _let_stand_in(args: argparse.Namespace) -> None:
    """Install the stand-in for Transformer Engine's kernels before the script starts.

    The script's own process is not put back: it ends with the script.
    """
    if args.te == "off":
        return
    try:
        stand_in().install()
    except RuntimeError as error:
        if args.te == "cpu":
            args.parser.error(f"--te=cpu: {error}")
        print(f"pytest_precision: no stand-in for Transformer Engine: {error}", file=sys.stderr)
    else:
        print(f"pytest_precision: Transformer Engine {stand_in_running()}", file=sys.stderr)
