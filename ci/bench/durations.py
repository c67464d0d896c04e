"""What the tests of a run take, by folder and by file, from the JUnit file that CI keeps.

    python ci/bench/durations.py [build/tests.xml] [--than OLDER.xml] [--files 25]

Seconds are those in which a worker of pytest-xdist ran a test or waited for its processes: so
compare files of runs on one machine. With an older file, each folder has its ratio.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree


def seconds_by_file(report: Path) -> Counter[str]:
    """Return test file to the seconds of all its tests, as a JUnit file has them."""
    found: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        found[case.get("classname", "").replace(".", "/")] += float(case.get("time", 0))
    return found


def by_folder(files: Counter[str]) -> Counter[str]:
    """Return folder below `tests` to its seconds."""
    found: Counter[str] = Counter()
    for name, seconds in files.items():
        found["/".join(name.split("/")[:2])] += seconds
    return found


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("report", type=Path, nargs="?", default=Path("build/tests.xml"))
    parser.add_argument("--than", type=Path, help="an older file to compare with")
    parser.add_argument("--files", type=int, default=25, help="how many files are listed")
    asked = parser.parse_args()
    files = seconds_by_file(asked.report)
    older = by_folder(seconds_by_file(asked.than)) if asked.than else Counter[str]()
    for folder, seconds in [("all", files.total()), *by_folder(files).most_common()]:
        before = older.total() if folder == "all" else older[folder]
        print(f"{seconds:8.0f} s  {folder}" + (f"  x{seconds / before:.2f}" if before else ""))
    print()
    for name, seconds in files.most_common(asked.files):
        print(f"{seconds:8.0f} s  {name}")


if __name__ == "__main__":
    main()
