"""The values of all options, for one pytest session or for one test."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

BARE = "precision_probes = none"
"""What makes cells bare, in words."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of all options of a session or test, such as device, timeout and report.

    Attributes:
        enabled: whether cells run; otherwise they are skipped.
        select: (axis, values) pairs; a cell runs if it has one of the values on every axis.
        coverage: which of the selected cells run: `full`, `pairwise` or `smoke`.
        shard: index, from 1, and count of the runners that share the cells.
        device: where ranks run: `auto`, `cpu` or `cuda`.
        backend: backend of the number formats: `auto`, `emulated` or `native`.
        ranks: how ranks run: `reuse`, `fresh` or `inline`.
        timeout: deadline of one cell, in seconds.
        report: absolute path of the folder for report.json; with None no report is written.
        report_host: whether the report names the machine.
        strict_isolation: whether a job that leaves process-global state changed fails its test.
        ranks_per_device: how many ranks may share a GPU.
        may_leave: patterns of the state that any job may leave changed.
        pure: whether all layouts, workloads and scripts depend on their arguments and cell alone.
        probes: what is recorded beside what both sides compute: `all`, by which each side is judged
            by itself, or `none`.
        require: whether a session fails in which no cell ran, or one lacked ranks or devices.
        jitter: how many more times each candidate is recorded, with delays.
        fuzz: how many cells are drawn for each matrix test in addition to its own.
        preload: modules that are imported once, and of which all ranks are copies.
        lines: whether a failed check is run once more to name a line: `auto` or `off`.
        deterministic: what an operator without a deterministic algorithm does: `error` or `warn`.
        against: revision of the repository that each side is compared with; None for none.
        against_python: interpreter that each side is compared with.
        against_build: shell command that makes the compiled parts of that revision.
        drift: whether a check fails where both sides moved alike: `fail` or `report`.
        baseline: what becomes of baselines: `update` or `check`; None leaves them to golden tests.
        baseline_dir: folder of the baselines; None for `precision_baselines` in pytest's root.
        te: where layouts that use Transformer Engine run: `auto`, `cpu` or `off`.
    """

    enabled: bool = False
    select: tuple[tuple[str, tuple[str, ...]], ...] = ()
    coverage: str = "full"
    shard: tuple[int, int] = (1, 1)
    device: str = "auto"
    backend: str = "auto"
    ranks: str = "reuse"
    timeout: float = 300.0
    report: Path | None = None
    report_host: bool = False
    strict_isolation: bool = False
    ranks_per_device: int = 1
    may_leave: tuple[str, ...] = ()
    pure: bool = False
    probes: str = "all"
    require: bool = False
    jitter: int = 0
    fuzz: int = 0
    preload: tuple[str, ...] = ()
    lines: str = "auto"
    deterministic: str = "error"
    te: str = "auto"
    against: str | None = None
    against_python: Path | None = None
    against_build: str | None = None
    drift: str = "fail"
    baseline: str | None = None
    baseline_dir: Path | None = None

    @property
    def preloads(self) -> bool:
        """Return whether rank processes are to start with the modules in `preload` imported."""
        return bool(self.preload) and self.enabled and self.ranks != "inline"

    @property
    def bare(self) -> bool:
        """Return whether cells are bare: nothing is recorded by which a side is judged alone."""
        return self.probes == "none"

    @property
    def compares_in_time(self) -> bool:
        """Return whether to compare results with those of another commit or interpreter."""
        return bool(self.against) or self.against_python is not None

    @property
    def of_repeat(self) -> str:
        """Return the command-line options with which a rerun of a failed check fails again."""
        options = {
            "jitter": self.jitter,
            "against": self.against,
            "against-python": self.against_python,
            "baseline": self.baseline,
        }
        keys = {
            "against_build": self.against_build if self.against else None,
            "baseline_dir": self.baseline_dir,
            "probes": "none" if self.bare else None,
        }
        words = [f"--precision-{name}={value}" for name, value in options.items() if value]
        for name, value in keys.items():
            words += ["-o", f"precision_{name}={value}"] if value else []
        return shlex.join(words)


SETTINGS = pytest.StashKey[Settings]()
"""Key under which `pytest_configure` stores the settings of the session in `config.stash`."""
