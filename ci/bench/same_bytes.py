"""Whether two checkouts of the package record the same bytes, in each cell of some suites.

    python ci/bench/same_bytes.py ../main [--suite fixtures/downstream ...] [--sample N] [PYTEST …]

Each suite of this checkout is run by the package of both, and each folder that ranks have recorded
into is copied. All files are compared but for provenance: the path of the checkout, wherever a file
names it; lines of this package in a log of operations; and what engines save in `checkpoint`, which
is no recording. Interpreter, versions, environment and the seed of hashes, by which sets of tensors
are ordered, are the same in both runs; commit and time are in no recording of a cell.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SUITES = (Path("fixtures/downstream"), Path("fixtures/stacks"))

COPIES, SAMPLE = "SAME_BYTES_COPIES", "SAME_BYTES_SAMPLE"
"""Variables that tell the session into which folder recordings go, and how many cells run."""

NO_RECORDING = "checkpoint"
"""Folder beside a trace in which engines save what they like."""

OWN_LINE = re.compile(rb'\["(PACKAGE/)?[a-z_]+/[a-z_/]+\.py", \d+')
"""A line of this package in a log of operations; files of others have absolute paths."""

SHOWN = 20
"""Differences that are listed."""


def pytest_configure(config: pytest.Config) -> None:
    """Copy each recording of the session once it is made."""
    from pytest_precision.trace.cache import TraceCache

    original = TraceCache.new_folder
    numbers: Counter[str] = Counter()

    @contextmanager
    def copying(cache: TraceCache) -> Iterator[Path]:
        with original(cache) as folder:
            yield folder
            test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0].replace("/", ":")
            numbers[test] += 1
            copy = Path(os.environ[COPIES]) / test / str(numbers[test])
            shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(NO_RECORDING))

    TraceCache.new_folder = copying  # type: ignore[method-assign]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep cells alone: all of them, or as many as are asked for, evenly spaced."""
    cells = [item for item in items if item.get_closest_marker("precision_matrix")]
    limit = int(os.environ[SAMPLE]) or len(cells)
    items[:] = [cells[number * len(cells) // limit] for number in range(min(limit, len(cells)))]


def record(package: Path, suite: Path, copies: Path, sample: int, arguments: list[str]) -> None:
    """Run a suite by the package of a checkout, and copy what its ranks record into a folder."""
    words = ["-p", "same_bytes", "-p", "no:cacheprovider", "-q", "--precision-matrix"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *words, *arguments],
        cwd=ROOT / suite,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(package), str(Path(__file__).parent))),
            "PYTHONHASHSEED": "0",
            COPIES: str(copies),
            SAMPLE: str(sample),
        },
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    lines = ran.stdout.splitlines()
    print(f"{suite} by {package}: {lines[-1] if lines else ran.stderr}", flush=True)
    if not copies.is_dir():
        raise SystemExit(f"expected a recording but got none:\n{ran.stdout}{ran.stderr}")


def contents(copies: Path, package: Path) -> dict[str, bytes]:
    """Return the bytes of all files below a folder by their paths in it, without provenance."""
    files = [file for file in sorted(copies.rglob("*")) if file.is_file()]
    raw = {str(file.relative_to(copies)): file.read_bytes() for file in files}
    return {
        name: OWN_LINE.sub(
            b"line", content.replace(bytes(package / "pytest_precision"), b"PACKAGE")
        )
        if name.endswith(".json")
        else content
        for name, content in raw.items()
    }


def differences(ours: dict[str, bytes], theirs: dict[str, bytes]) -> Iterator[str]:
    """Yield words on each file that one checkout lacks, or whose bytes are others."""
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in theirs or name not in ours:
            yield f"{name}: only {'here' if name in ours else 'there'}"
        elif ours[name] != theirs[name]:
            pairs = zip(ours[name], theirs[name], strict=False)
            ends = min(len(ours[name]), len(theirs[name]))
            first = next((at for at, pair in enumerate(pairs) if pair[0] != pair[1]), ends)
            part = slice(max(0, first - 30), first + 30)
            yield f"{name}: byte {first}: {ours[name][part]!r} here, {theirs[name][part]!r} there"


def main() -> None:
    """Print how many files were compared, and which differ; the exit status says whether any do."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("other", type=Path, help="root of the other checkout")
    parser.add_argument("--suite", type=Path, nargs="+", default=SUITES, help="folders of tests")
    parser.add_argument("--sample", type=int, default=0, help="cells of each suite; 0 for all")
    options, arguments = parser.parse_known_args()  # the others are for pytest
    checkouts = (ROOT, options.other.resolve())
    unlike: list[str] = []
    for suite in options.suite:
        with tempfile.TemporaryDirectory() as folder:
            homes = [Path(folder, str(number)) for number in range(2)]
            for package, home in zip(checkouts, homes, strict=True):
                record(package, suite, home, options.sample, arguments)
            ours, theirs = map(contents, homes, checkouts)
        size = sum(map(len, ours.values()))
        recordings = len({Path(name).parents[-3] for name in ours})
        words = f"{suite}: {recordings} recordings, {len(ours)} files, {size:,} bytes"
        apart = [*differences(ours, theirs)]
        print(f"{words}: {f'{len(apart)} files differ' if apart else 'the same'}", flush=True)
        unlike += apart
    print("\n".join(unlike[:SHOWN]))
    raise SystemExit(bool(unlike))


if __name__ == "__main__":
    main()
