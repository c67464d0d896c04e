"""`record --watch` and `record --replay` run a script to its end, and keep no recording."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_precision.__main__ import main
from pytest_precision.options import Settings
from pytest_precision.plugin.resources import Resources
from pytest_precision.ranks.needs import Needs

SCRIPT = """
import sys, torch
import torch.distributed as dist

defect, rank = sys.argv[1], 0
torch.manual_seed(0)
model = called = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 6))
if defect != "alone":
    dist.init_process_group("gloo")
    rank, called = dist.get_rank(), torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(called.parameters(), lr=0.01)
if rank == 0 and defect != "alone":
    sys.stderr = open("said", "w", buffering=1)
for step in range(6):
    data = torch.Generator().manual_seed(rank + 9 * step)
    called(torch.randn(4, 8, generator=data)).sum().backward()
    if defect == "weight" and (rank, step) == (1, 3):
        model[0].weight.data[2, 2] += 1
    optimizer.step()
    optimizer.zero_grad()
open(f"done{rank}", "w").close()
"""


@pytest.fixture
def watch_script(in_folder: Path, resources: Resources) -> Callable[..., list[int]]:
    """Watch the script on two ranks such as torchrun starts; return the exit statuses."""
    (in_folder / "watched.py").write_text(SCRIPT)
    pool = resources.ranks(Settings(timeout=120, device="cpu"))

    def run(*words: str) -> list[int]:
        return pool.run(2, main, ["record", *words], needs=Needs(launched=True))

    return run


def test_a_script_runs_to_its_end(watch_script: Callable[..., list[int]], in_folder: Path) -> None:
    """And says what was compared, and where ranks differ, on standard error of the first rank."""
    before = {path.name for path in in_folder.iterdir()}
    words = "--watch", "2", "--on-mismatch", "report", "--", "watched.py", "weight"
    assert watch_script(*words) == [0, 0]
    first, mismatch, last = Path("said").read_text().splitlines()
    assert re.fullmatch(r".*: watching (\d+) of \1 tensors and options of 2 ranks", first)
    assert mismatch.startswith("pytest_precision: step 4: param of 0.weight differs between rank 0")
    assert last == "pytest_precision: watched 6 steps"
    files = {path.name for path in in_folder.iterdir()}
    assert files - before == {"said", "done0", "done1"}


def test_a_mismatch_ends_it(in_folder: Path, watch_script: Callable[..., list[int]]) -> None:
    """Unless it is to go on; the error is that of the line that updates."""
    with pytest.raises(Exception, match=r"step 4: param of 0\.weight differs between rank 0"):
        watch_script("--watch", "--", "watched.py", "weight")


def test_one_rank_can_be_replayed(
    watch_script: Callable[..., list[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    """But has nobody to be compared with."""
    assert main(["record", "--replay", "--", "watched.py", "alone"]) == 0
    assert "watched 6 steps" in capsys.readouterr().err
    with pytest.raises(RuntimeError, match="several ranks to compare but got 1"):
        main(["record", "--watch", "--", "watched.py", "alone"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--watch", "--out", "a"],
            "--watch or --replay, which record nothing, alone but got --out",
        ),
        (["--replay", "--steps", "3"], "alone but got --steps, too"),
        (["--watch", "0"], "a whole number from 1"),
        ([], "the following arguments are required: --out"),
    ],
)
def test_what_cannot_be_is_refused(
    watch_script: Callable[..., list[int]],
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    """Before the script runs."""
    with pytest.raises(SystemExit) as end:
        main(["record", *words, "--", "watched.py", "alone"])
    assert end.value.code == 2
    assert message in capsys.readouterr().err
