"""Run tests that others wrote over the stand-in for Transformer Engine, and write what they said.

    python ci/bench/te_suites.py [--te DIR] [--megatron DIR] [--all] [--limit SECONDS] [FILE ...]

Each file is a job of its own, which is ended after its limit; the table says how many tests had
been run then. Rows of files that are not run are kept as they are. It fails if a file could not be
run, or if a test failed for a reason that `te_causes` does not know.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import te_page
from te_page import ROOT, Row

from pytest_precision import te
from pytest_precision.errors import expected_but_got

PLUGINS = ("-p", "pytest_precision.te.plugin", "-p", "te_outcomes", "-p", "no:precision")
PLAIN = ("-p", "no:cacheprovider", "-o", "addopts=", "-q", "--timeout=300")
PATIENCE = 60
"""Seconds for a launcher to end its ranks: it kills those that are there after 30."""


@dataclass(frozen=True)
class Suite:
    """A file of tests.

    Attributes:
        file: its path in the project's folder of tests.
        every: one of so many tests is run, unless all are asked for.
        ranks: how many processes run it together.
        plugins: options of pytest beside those of its project.
    """

    file: str
    every: int = 1
    ranks: int = 1
    plugins: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What the table calls it."""
        return self.file if self.ranks == 1 else f"{self.file}, {self.ranks} ranks"


@dataclass(frozen=True)
class Project:
    """A project whose tests are run.

    Attributes:
        option: name of the option that its checkout is given by, and of its table.
        title: what it is called.
        address: where its checkout comes from.
        tests: its folder of tests.
        start: the folder, in a checkout, in which its tests are started.
        imported: whether the project itself is imported from the checkout; else it is installed.
        plugins: options of pytest beside those for all.
        suites: the files.
    """

    option: str
    title: str
    address: str
    tests: str
    start: str
    imported: bool
    plugins: tuple[str, ...]
    suites: tuple[Suite, ...]


TE = Project(
    option="te",
    title="Transformer Engine",
    address="https://github.com/NVIDIA/TransformerEngine",
    tests="tests/pytorch",
    start="tests/pytorch",
    imported=False,
    plugins=(),
    suites=(
        Suite("test_recipe.py"),
        Suite("test_quantized_tensor.py"),
        Suite("nvfp4/test_nvfp4_quantize_exact.py", every=100),
        Suite("nvfp4/test_nvfp4_rht_quantize_exact.py", every=10),
        Suite("nvfp4/test_nvfp4_module_exact.py", every=10),
        Suite("nvfp4/test_nvfp4_gemm_exact.py", every=20),
        Suite("mxfp8/test_mxfp8_master_weight_empty_shard.py"),
        Suite("mxfp8/test_mxfp8_dequantize_extreme_scales.py"),
        Suite("test_mxfp8_2d_quantize.py"),
        Suite("test_float8_current_scaling_exact.py"),
        Suite("test_float8_blockwise_scaling_exact.py"),
        Suite("test_float8_blockwise_gemm_exact.py", every=20, plugins=("-p", "te_hopper")),
        Suite("test_float8blockwisetensor.py"),
        Suite("test_partial_cast.py"),
        Suite("test_fused_optimizer.py"),
        Suite("test_multi_tensor.py", every=10),
        Suite("test_identity_quantizer.py"),
        Suite("test_custom_recipe.py"),
        Suite("test_deferred_init.py"),
        Suite("test_fused_rope.py", every=1000),
        Suite("test_fused_router.py", every=10),
        Suite("test_permutation.py", every=40),
        Suite("test_parallel_cross_entropy.py"),
    ),
)

MEGATRON = Project(
    option="megatron",
    title="Megatron-core",
    address="https://github.com/NVIDIA/Megatron-LM",
    tests="tests/unit_tests",
    start=".",
    imported=True,
    plugins=("-p", "megatron_alone"),
    suites=(
        Suite("transformer/moe/test_moe_single_grouped_weight_numerics.py", ranks=2),
        Suite("optimizer/test_distrib_optimizer_grouped_quantized.py"),
        Suite("test_fp8_utils.py"),
        Suite("optimizer/test_clip_grads.py"),
        Suite("transformer/test_transformer_engine_grouped_linear.py"),
        Suite("transformer/moe/test_grouped_mlp.py"),
        Suite("dist_checkpointing/test_optimizer.py", ranks=4),
        Suite("distributed/test_param_and_grad_buffer.py", ranks=2),
    ),
)

PROJECTS = (TE, MEGATRON)


def main() -> int:
    """Run the chosen files and write the page; return 1 if something is not in order."""
    parser = argparse.ArgumentParser(prog="ci/te", description=__doc__.split("\n")[0])
    for project in PROJECTS:
        text = f"a checkout of {project.title}, from {project.address}"
        parser.add_argument(f"--{project.option}", type=Path, metavar="DIR", help=text)
    parser.add_argument("--all", action="store_true", help="run every test")
    parser.add_argument("--limit", type=int, default=1800, help="seconds that a file may take")
    parser.add_argument("files", nargs="*", help="run these files alone, by the end of their paths")
    args = parser.parse_args()
    problem = problem_of(vars(args)) or te.refusal()
    if problem:
        parser.error(problem)
    # A job that is cancelled ends what it has started, as one that is interrupted does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    orders = [
        measure(project, vars(args)[project.option].resolve(), suite, args)
        for project in PROJECTS
        for suite in chosen(project, vars(args))
    ]
    return int(not all(orders))


def problem_of(arguments: dict[str, Any]) -> str:
    """Return what is wrong with the arguments; empty if nothing is."""
    projects = [project for project in PROJECTS if arguments[project.option] is not None]
    options = " or ".join(f"--{project.option} DIR" for project in PROJECTS)
    if not projects:
        return expected_but_got(options, "neither", f"clone {TE.address}, and give its folder")
    for project in projects:
        tests = arguments[project.option] / project.tests
        if not tests.is_dir():
            expected = f"--{project.option} to be a checkout of {project.title}"
            got = f"{arguments[project.option]}, which has no {project.tests}"
            return expected_but_got(expected, got, f"clone {project.address}")
        for suite in chosen(project, arguments):
            if not (tests / suite.file).is_file():
                expected = f"a checkout of {project.title} with {project.tests}/{suite.file}"
                got = f"{arguments[project.option]}, which lacks it"
                workflow = ".github/workflows/transformer-engine.yml"
                return expected_but_got(expected, got, f"check out the commit in {workflow}")
    files = [suite.file for project in projects for suite in project.suites]
    for file in arguments["files"]:
        if not any(name.endswith(file) for name in files):
            return expected_but_got("one of " + ", ".join(files), file, "name one of them")
    if arguments["limit"] < 1:
        return expected_but_got("--limit of at least 1 second", str(arguments["limit"]), "raise it")
    return ""


def chosen(project: Project, arguments: dict[str, Any]) -> list[Suite]:
    """Return the files of a project that are to be run."""
    if arguments[project.option] is None:
        return []
    ends = tuple(arguments["files"]) or ("",)
    return [suite for suite in project.suites if suite.file.endswith(ends)]


def measure(project: Project, checkout: Path, suite: Suite, args: argparse.Namespace) -> bool:
    """Run one file and write its row; return whether it is in order."""
    every = 1 if args.all else suite.every
    lines, seconds = run(project, checkout, suite, every, args.limit)
    row = te_page.row(lines, every)
    rows = te_page.read_rows(project.option) | {suite.name: row}
    in_order = {
        project_suite.name: rows[project_suite.name]
        for project_suite in project.suites
        if project_suite.name in rows
    }
    te_page.write_rows(project.option, provenance(project, checkout), in_order)
    print(f"{suite.name}: {said(row)} ({seconds:.0f} s)", flush=True)
    return te_page.is_in_order(row)


def run(
    project: Project, checkout: Path, suite: Suite, every: int, limit: int
) -> tuple[list[dict[str, object]], float]:
    """Run one file, and return the lines that `te_outcomes` wrote, and how long it took."""
    began = time.monotonic()
    start = checkout / project.start
    file = (checkout / project.tests / suite.file).relative_to(start)
    # A checkout may lie in this repository, whose options and conftest.py are not for its tests.
    options = ("-c", str(checkout / "pyproject.toml"))
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={suite.ranks}"]
    command = [
        sys.executable,
        *(launch if suite.ranks > 1 else ()),
        *("-m", "pytest", *PLUGINS, *project.plugins, *suite.plugins, *PLAIN, *options, str(file)),
    ]
    package_path = str(checkout) if project.imported else ""
    path = [package_path, str(ROOT / "ci" / "bench"), os.environ.get("PYTHONPATH", "")]
    with tempfile.TemporaryDirectory(prefix="precision-te-") as folder:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PRECISION_TE_OUTCOMES": folder,
            "PRECISION_TE_EVERY": str(every),
        }
        process = subprocess.Popen(
            command,
            cwd=start,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            pass  # the row says after how many tests
        finally:
            end(process)
        lines = [
            line
            for outcome_file in Path(folder).iterdir()
            for line in outcome_file.read_text().splitlines()
        ]
    return [json.loads(line) for line in lines], time.monotonic() - began


def end(process: subprocess.Popen[bytes]) -> None:
    """End a job with all its processes.

    A launcher starts each rank in a session of its own, and ends them when it is asked to end.
    """
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(PATIENCE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def provenance(project: Project, checkout: Path) -> str:
    """Return the sentence that says with what a project's table was measured."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short=12", "HEAD"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    commit = process.stdout.strip() if (checkout / ".git").exists() else ""
    of = f"{project.title}{f' at {commit}' if commit else ''}"
    torch = f"torch {version('torch')}, without a GPU"
    return f"Tests of {of}, with transformer-engine {version('transformer-engine')} and {torch}."


def said(cells: Row) -> str:
    """Return what a row says, for a terminal."""
    passed, failed, skipped, of, why = cells
    if passed == te_page.NOT_RUN:
        return f"{passed}: {why}"
    return f"{passed} passed, {failed} failed, {skipped} skipped of {of}{why and f': {why}'}"


if __name__ == "__main__":
    sys.exit(main())
