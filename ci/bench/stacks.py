"""What a framework costs a user: `python ci/bench/stacks.py [report.json]`.

Lines of each file of `fixtures/stacks` that are no tests, comments, docstrings or blank, and, of a
report that `ci/stacks --precision-report=DIR` wrote, seconds of its cells: the median and the
greatest, which has the import of the framework in it. A layout or script with more than 60 lines
is marked.
"""

from __future__ import annotations

import ast
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

STACKS = Path(__file__).resolve().parents[2] / "fixtures" / "stacks"
LONGEST = 60


def lines(nodes: list[ast.stmt]) -> set[int]:
    """Return the numbers of the lines with code in these statements."""
    numbers: set[int] = set()
    for node in (inner for outer in nodes for inner in ast.walk(outer)):
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and not text:
            body = getattr(node, "body", None)
            stop = body[0].lineno if body else (node.end_lineno or node.lineno) + 1
            numbers.update(range(node.lineno, stop))
    return numbers


def parts(file: Path) -> Iterator[ast.stmt]:
    """Yield the functions and classes of a file that are no tests."""
    for node in ast.parse(file.read_text()).body:
        named = isinstance(node, (ast.FunctionDef, ast.ClassDef))
        if named and not node.name.startswith("test_"):
            yield node


def seconds(report: Path | None) -> dict[str, list[float]]:
    """Return the seconds of the cells of each file."""
    seconds_of_files: dict[str, list[float]] = defaultdict(list)
    for cell in json.loads(report.read_text())["cells"] if report else ():
        seconds_of_files[cell["nodeid"].split("::")[0]].append(cell["seconds"])
    return seconds_of_files


def main() -> None:
    """Print the table."""
    spent = seconds(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    print(
        f"{'file':<28} {'lines':>5} {'longest':>8} {'cells':>6} {'median s':>9} {'greatest s':>10}"
    )
    for file in sorted(STACKS.glob("test_*.py")):
        lengths = {node.name: len(lines([node])) for node in parts(file)}  # type: ignore[attr-defined]
        longest = max(lengths.values(), default=0)
        row = f"{file.name:<28} {sum(lengths.values()):>5} {longest:>8}"
        if cells := spent.get(file.name):
            row += f" {len(cells):>6} {statistics.median(cells):>9.1f} {max(cells):>10.1f}"
        print(row, "TOO LONG" if longest > LONGEST else "")


if __name__ == "__main__":
    main()
