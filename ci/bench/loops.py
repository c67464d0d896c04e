"""What recording a script costs: `python ci/bench/loops.py [--millions N] [--tokens N ...]`.

A training script, left as it is, on one rank: run by itself, under `record` with digests and with
the values of all steps, and as a cell runs it, which also measures lost updates. A step of few
tokens computes little, and recording reads every weight whatever the batch is; the ratios are given
for several batches. Recordings are removed off the clock.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import tempfile
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch.distributed as dist
from measure import interleave, ratio

from pytest_precision.matrix.cell import Cell
from pytest_precision.recorders.scripts.script_file import record_file, run_file
from pytest_precision.recorders.scripts.script_recorder import record_script
from pytest_precision.trace.remote_folder import OutFolder

SCRIPT = Path(__file__).with_name("plain_script.py")
STEPS = 3
ALL = range(STEPS + 1)
AIMS = {"digests": 1.15, "values": 2.0, "cell": None}


class Runs:
    """One script with its arguments, run in each of the ways.

    Args:
        arguments: of the script.
        folder: an existing one, for recordings.
    """

    def __init__(self, arguments: list[str], folder: Path) -> None:
        self._arguments = arguments
        self._folder = folder
        self._numbers = count()

    def bare(self) -> None:
        """Run the script by itself."""
        run_file(SCRIPT, self._arguments)

    def recorded(self, values: range) -> None:
        """Run it under `python -m pytest_precision record`, without the command's process."""
        record_file(SCRIPT, self._arguments, OutFolder(self._new()), STEPS, values)

    def cell(self) -> None:
        """Run it as a side of a cell that compares digests first."""
        folder = self._new()
        store = dist.FileStore(str(folder / "store"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        record_script(self._in_a_cell, Cell(sequence=f"train{STEPS}"), folder, None)
        dist.destroy_process_group()

    def remove(self) -> None:
        """Remove recordings before their bytes are written back, and models in cycles."""
        gc.collect()
        for recording in self._folder.iterdir():
            shutil.rmtree(recording)

    def _in_a_cell(self, _cell: Cell, record: Any) -> None:
        with record():
            run_file(SCRIPT, self._arguments)

    def _new(self) -> Path:
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        return folder


def table(args: argparse.Namespace, tokens: int, folder: Path) -> None:
    """Measure with one size of the batch, and print."""
    arguments = map(str, (args.millions, tokens, STEPS))
    runs = Runs([*arguments], folder)
    functions = {
        "bare": runs.bare,
        "digests": partial(runs.recorded, range(0)),
        "values": partial(runs.recorded, ALL),
        "cell": runs.cell,
    }
    seconds = interleave(functions, args.rounds, alone=not args.shared, after=runs.remove)
    row = f"{tokens:>6}"
    for name, aim in AIMS.items():
        case_ratio = ratio(seconds, name, "bare")
        row += f" {case_ratio:>8.2f}" + ("*" if aim is not None and case_ratio > aim else " ")
    print(row, flush=True)


def main() -> None:
    """Print the ratios, and mark those that miss their aim."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millions", type=int, default=100, help="parameters, in millions")
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 1024, 2048], metavar="N")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where recordings are made; default: that of tempfile")
    parser.add_argument("--shared", action="store_true", help="count rounds beside other processes")
    args = parser.parse_args()
    aims = ", ".join(f"{name} at most {aim}" for name, aim in AIMS.items() if aim is not None)
    print(f"{args.millions} M parameters, {STEPS} steps; time over that of the bare script")
    print(f"{'tokens':>6}" + "".join(f" {name:>8} " for name in AIMS) + f"  aims: {aims}")
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for tokens in args.tokens:
            table(args, tokens, Path(folder))


if __name__ == "__main__":
    main()
