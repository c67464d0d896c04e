"""Write a first test into a folder, which runs unchanged, and print how to run it.

Exit status 0 if it is written, 2 if not.
"""

from __future__ import annotations

import argparse
import errno
import os
from pathlib import Path
from typing import Any

from pytest_precision._destination import Destination, never_ours
from pytest_precision.commands import add_command, say
from pytest_precision.errors import expected_but_got, named

NAME = "test_precision.py"

OF_ITS_OWN = '''\
"""Does a change to the training loop change a single bit of what it computes?

    pytest --precision-matrix test_precision.py

Each cell trains twice, with and without the change, and compares weights, gradients and optimizer
state of every step bit for bit. To see a red cell, write `0.9 if foreach else 0.8` for 0.9 below.
"""

import pytest
import torch
from pytest_precision import script


def train(foreach):  # put your own loop here, and what is to change in it
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), foreach=foreach)
    generator = torch.Generator().manual_seed(0)
    for _ in range(1000):
        loss = model(torch.randn(4, 8, generator=generator)).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()


@script
def trainer(cell, record):
    with record():  # the loop ends by itself after the steps of the cell
        train(cell.foreach)


@pytest.mark.precision_matrix(precision=["fp32"], sequence=["train4"], foreach=[True])
def test_foreach_changes_no_number(cell, parity):
    parity.check(
        candidate=trainer, reference=trainer, reference_cell=cell.replace(foreach=False)
    )
'''

OF_A_SCRIPT = '''\
"""Do two command lines of {name} compute the same numbers?

    pytest --precision-matrix test_precision.py

Each cell runs the script twice, ends it after a few train steps, and compares weights, gradients
and optimizer state of every step bit for bit. As it is, both runs have the same arguments: the test
is red if the script does not repeat itself. Write what must not change a number into CHANGED, and
`world_size=[2]` for two ranks, which torchrun then starts: a script that makes a process group
needs that.
"""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / {path!r}
AS_IT_IS = []
CHANGED = []


def recorded(cell, folder, arguments):
    launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={{cell.world_size}}"]
    command = [
        sys.executable, *(launcher if cell.world_size > 1 else []), "-m", "pytest_precision",
        "record", "--out", str(folder), "--steps", str(len(cell.operations)),
        "--", str(SCRIPT), *arguments,
    ]
    subprocess.run(command, cwd=SCRIPT.parent, check=True, timeout=600)
    return folder


@pytest.mark.precision_matrix(precision=["fp32"], sequence=["train4"], world_size=[1])
def test_the_arguments_change_no_number(cell, parity, tmp_path):
    parity.compare(
        recorded(cell, tmp_path / "changed", CHANGED),
        recorded(cell, tmp_path / "as_it_is", AS_IT_IS),
    )
'''


def add_to(commands: Any) -> None:
    """Add the command `init` and its options to the command line's parser."""
    parser = add_command(commands, "init", run, "write a first test", __doc__)
    parser.add_argument(
        "folder",
        metavar="FOLDER",
        type=Path,
        nargs="?",
        default=Path(),
        help=f"where {NAME} is written (default: here)",
    )
    parser.add_argument(
        "--script",
        metavar="FILE",
        dest="file",
        type=Path,
        help="a training script: the test runs it twice",
    )


def run(args: argparse.Namespace) -> int:
    """Write a first test file, to be edited, into a folder, and return the exit status."""
    text = OF_ITS_OWN
    if args.file is not None:
        if not args.file.is_file():
            args.parser.error(
                expected_but_got("a file", named("--script", str(args.file)), "name a script")
            )
        path = os.path.relpath(args.file.resolve(), args.folder.resolve())
        text = OF_A_SCRIPT.format(name=_in_docstring(args.file.name), path=path)
    target = args.folder / NAME
    try:
        Destination(target, never_ours).put(text)
    except OSError as error:
        args.parser.error(
            expected_but_got(
                "a folder in which a new file can be written",
                f"{target} ({error.strerror or os.strerror(errno.EEXIST)})",
                "name another folder; nothing is overwritten",
            )
        )
    say(f"wrote {target}; run it with: pytest --precision-matrix {target}")
    return 0


def _in_docstring(text: str) -> str:
    """Escape a text for a docstring, so that a quote in the text does not end the docstring."""
    return repr(text)[1:-1].replace('"', r"\"")
