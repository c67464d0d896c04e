"""Run the tests of Transformer Engine over the stand-in, and write what they said.

    python ci/bench/te_suites.py --te DIR [--all] [--limit SECONDS] [FILE ...]

Each file is a process of its own, which is ended after its limit; the table says how many tests had
been run then. Rows of files that are not run are kept as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "transformer-engine.md"
BEGIN, END = "<!-- ci/te begins -->", "<!-- ci/te ends -->"
PLUGINS = ("-p", "pytest_precision.te.plugin", "-p", "te_outcomes", "-p", "no:precision")
PLAIN = ("-p", "no:cacheprovider", "-o", "addopts=", "-q", "--timeout=300")


@dataclass(frozen=True)
class Suite:
    """A file of tests.

    Attributes:
        file: its path in the folder of tests.
        every: one of so many tests is run, unless all are asked for.
    """

    file: str
    every: int = 1


SUITES = (
    Suite("test_recipe.py"),
    Suite("test_quantized_tensor.py"),
    Suite("nvfp4/test_nvfp4_quantize_exact.py", every=10),
    Suite("nvfp4/test_nvfp4_rht_quantize_exact.py"),
    Suite("nvfp4/test_nvfp4_module_exact.py"),
    Suite("nvfp4/test_nvfp4_gemm_exact.py", every=10),
    Suite("mxfp8/test_mxfp8_master_weight_empty_shard.py"),
    Suite("mxfp8/test_mxfp8_dequantize_extreme_scales.py"),
    Suite("test_mxfp8_2d_quantize.py"),
    Suite("test_float8_current_scaling_exact.py"),
    Suite("test_float8_blockwise_scaling_exact.py"),
    Suite("test_float8_blockwise_gemm_exact.py", every=10),
    Suite("test_float8blockwisetensor.py"),
    Suite("test_partial_cast.py"),
    Suite("test_fused_optimizer.py"),
    Suite("test_multi_tensor.py", every=10),
    Suite("test_identity_quantizer.py"),
    Suite("test_custom_recipe.py"),
    Suite("test_deferred_init.py"),
    Suite("test_fused_rope.py", every=10),
    Suite("test_fused_router.py", every=10),
    Suite("test_permutation.py", every=10),
    Suite("test_parallel_cross_entropy.py"),
)


def main() -> int:
    """Run the chosen files and write the page; return 1 if one of them could not be run at all."""
    parser = argparse.ArgumentParser(prog="ci/te", description=__doc__.split("\n")[0])
    parser.add_argument("--te", type=Path, required=True, help="a checkout of Transformer Engine")
    parser.add_argument("--all", action="store_true", help="run every test")
    parser.add_argument("--limit", type=int, default=1800, help="seconds that a file may take")
    parser.add_argument("files", nargs="*", help="run these files alone, by the end of their paths")
    asked = parser.parse_args()
    rows = read_rows()
    for suite in SUITES:
        if asked.files and not suite.file.endswith(tuple(asked.files)):
            continue
        lines, seconds = run(asked.te.resolve(), suite, asked.all, asked.limit)
        rows[suite.file] = row(lines, suite, asked.all)
        print(f"{suite.file}: {rows[suite.file]} ({seconds:.0f} s)", flush=True)
        write_rows(rows)
    return int(any(cells[0] == "not run" for cells in rows.values()))


def run(
    checkout: Path, suite: Suite, whole: bool, limit: int
) -> tuple[list[dict[str, object]], float]:
    """Run one file, and return the lines that `te_outcomes` wrote, and how long it took."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="precision-te-") as folder:
        written = Path(folder) / "outcomes"
        command = [sys.executable, "-m", "pytest", *PLUGINS, *PLAIN, suite.file]
        path = [str(checkout), str(ROOT / "ci" / "bench"), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PRECISION_TE_OUTCOMES": str(written),
            "PRECISION_TE_EVERY": str(1 if whole else suite.every),
        }
        process = subprocess.Popen(
            command,
            cwd=checkout / "tests" / "pytorch",
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
        lines = written.read_text().splitlines() if written.exists() else []
    return [json.loads(line) for line in lines], time.monotonic() - began


def row(lines: list[dict[str, object]], suite: Suite, whole: bool) -> list[str]:
    """Return the cells of a file: passed, failed, skipped, of how many, and why some failed."""
    counts = [line for line in lines if "collected" in line]
    outcomes = {str(line["test"]): line for line in lines if "test" in line}
    if not outcomes:
        return ["not run", "", "", "", "no test was collected"]
    number = Counter(str(line["outcome"]) for line in outcomes.values())
    total = max((int(str(line["collected"])) for line in counts), default=0)
    share = "" if whole or suite.every == 1 else f", one of {suite.every}"
    left = f", ended after {len(outcomes)}" if len(outcomes) < total else ""
    whys = Counter(cause(line) for line in outcomes.values() if line["outcome"] == "failed")
    why = "; ".join(f"{text} ({times})" for text, times in whys.most_common(4))
    if len(whys) > 4:
        why += f"; {len(whys) - 4} other messages"
    of = f"{total}{share}{left}"
    return [str(number[kind]) for kind in ("passed", "failed", "skipped")] + [of, why]


def cause(line: dict[str, object]) -> str:
    """Return the first line of a message as a cell of a table, without numbers that vary."""
    text = str(line["why"]).strip() or "no message"
    text = " ".join(text.split("\n")[:1]).replace("|", "/")
    text = re.sub(r"/\S+/", "", re.sub(r"0x[0-9a-f]+", "", text))
    return text[:160]


def read_rows() -> dict[str, list[str]]:
    """Return the rows of the page by their first cell."""
    if not PAGE.exists():
        return {}
    table = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    split = [line.strip("|").split(" | ") for line in table.splitlines() if " | " in line]
    return {cells[0].strip(" `"): [c.strip() for c in cells[1:]] for cells in split[1:]}


def write_rows(rows: dict[str, list[str]]) -> None:
    """Write the rows between the two marks of the page, in the order of the suites."""
    known = [suite.file for suite in SUITES]
    table = ["| tests | passed | failed | skipped | of | why some failed |"]
    table.append("| --- | --- | --- | --- | --- | --- |")
    table += [f"| {' | '.join([name, *rows[name]])} |" for name in known if name in rows]
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    release = f"Measured with transformer-engine {version('transformer-engine')}"
    lines = [
        BEGIN,
        "",
        f"{release} and torch {version('torch')}, without a GPU.",
        "",
        *table,
        "",
        END,
    ]
    PAGE.write_text(before + "\n".join(lines) + after)


if __name__ == "__main__":
    sys.exit(main())
