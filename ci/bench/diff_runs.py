"""What `diff` of one script takes: processor seconds of all its processes, and wall.

    python ci/bench/diff_runs.py [--rounds 3] [--python OTHER/bin/python ...]

The script is tiny, so that nearly all of it is the start of interpreters and of torch. It is
compared with a commit that computes the same, and with one that does not, which is recorded once
more to name the line. Interpreters, such as that of an earlier release, take turns; the figures are
medians over the rounds, and say something only beside each other.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRAIN = """
import torch
from factor import FACTOR

torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for _ in range(3):
    (FACTOR * model(torch.ones(4, 8)).square().mean()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""

CASES = {"agree": ("1 / 2", 0), "differ": ("0.25", 1)}
"""Name of a case to what the working tree has in place of a factor of 0.5, and the exit status."""


def taken(python: str, folder: Path, status: int) -> tuple[float, float]:
    """Return the processor seconds and the wall of one `diff` in a folder."""
    words = [python, "-m", "pytest_precision", "diff", "--steps", "2", "--", "train.py"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == status, done.stderr
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, wall


def repository(folder: Path) -> None:
    """Make a repository with the script in a folder."""
    (folder / "train.py").write_text(TRAIN)
    (folder / "factor.py").write_text("FACTOR = 0.5\n")
    names = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"]
    for words in (["init", "-q"], ["add", "--all"], ["commit", "-q", "-m", "one"]):
        environment = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull}
        subprocess.run(["git", *names, *words], cwd=folder, check=True, env=environment)


def main() -> None:
    """Print a line for each interpreter and case."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--python", action="append", default=[sys.executable])
    args = parser.parse_args()
    figures: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        repository(folder)
        for _ in range(args.rounds):
            for case, (factor, status) in CASES.items():
                (folder / "factor.py").write_text(f"FACTOR = {factor}\n")
                for python in args.python:
                    row = figures.setdefault((case, python), [])
                    row.append(taken(python, folder, status))
    for (case, python), row in figures.items():
        processor, wall = (statistics.median(column) for column in zip(*row, strict=True))
        print(f"{case:8} {processor:6.1f} s of processor {wall:6.1f} s of wall  {python}")


if __name__ == "__main__":
    main()
