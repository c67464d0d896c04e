"""Lines of two forms of a file are one line where their text is, whatever moved them."""

from __future__ import annotations

from pathlib import Path

from pytest_precision.probes.lines.explain.same_files import as_in_candidate
from pytest_precision.probes.lines.operations import CodeLine, LoggedOperation, OperationLog

BEFORE = "import torch\nx = torch.ones(2)\nloss = x.sum()\nloss.backward()\nstep()\n"

AFTER = "import torch\nprint()\nx = torch.ones(2)\nloss = x.mean()\nif True:\n    loss.backward()\n"


def log_of(file: Path, *numbers: int) -> OperationLog:
    """Return a log with an operation at each of these lines of a file."""
    lines = (CodeLine(str(file), number, "<module>", "", True) for number in numbers)
    return OperationLog(
        [LoggedOperation("aten.mul.Tensor", (), (), (), "", False, line) for line in lines]
    )


def lines_as_in(after: Path, before: Path, text: str) -> list[tuple[str, int]]:
    """Return where the operations of lines 2, 3 and 4 of the reference are said to be."""
    before.write_text(BEFORE)
    after.write_text(text)
    (log,) = as_in_candidate([log_of(after, 3)], [log_of(before, 2, 3, 4)])
    return [(Path(op.line.file).stem, op.line.line) for op in log.operations if op.line]


def test_moved_lines_are_those_of_the_candidate(tmp_path: Path) -> None:
    """So is one with another indent; a changed line stays one of the reference."""
    found = lines_as_in(tmp_path / "after.py", tmp_path / "before.py", AFTER)
    assert found == [("after", 3), ("before", 3), ("after", 6)]


def test_files_with_little_in_common_share_no_line(tmp_path: Path) -> None:
    """A line such as `loss.backward()` stands in every trainer."""
    other = "".join(f"run({number})\n" for number in range(9)) + "loss.backward()\n"
    found = lines_as_in(tmp_path / "after.py", tmp_path / "before.py", other)
    assert found == [("before", 2), ("before", 3), ("before", 4)]
