"""A runner: executes the `run:` blocks of an action or a job as GitHub does, on made-up files.

Steps that use other actions are not executed, but listed with their inputs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"


@dataclass
class Runner:
    """A machine with an empty workspace.

    Attributes:
        workspace: the current folder of all steps.
        programs: a folder that stands first on PATH.
        used: each action that was used, with its inputs.
        log: what the steps wrote.
    """

    workspace: Path
    programs: Path
    used: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    log: str = ""

    def __post_init__(self) -> None:
        self.workspace.mkdir()
        self.programs.mkdir()
        # Where all that is asked for is installed, pip takes a second to find that out.
        self.program("python3", f'[ "$1 $2" = "-m pip" ] || exec {sys.executable} "$@"')
        self.output = self.programs.with_name("output")
        self.summary = self.programs.with_name("summary")

    def program(self, name: str, text: str) -> None:
        """Install a shell script."""
        file = self.programs / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)

    def with_pip(self) -> None:
        """Have pip itself look at what is asked for."""
        self.program("python3", f'exec {sys.executable} "$@"')

    def action(self, folder: str, /, **inputs: str) -> bool:
        """Run an action; return whether all of its steps succeeded."""
        file = GITHUB / "actions" / folder / "action.yml"
        action = yaml.safe_load(file.read_text())
        given = {key: value.get("default", "") for key, value in action["inputs"].items()} | inputs
        return self._run(action["runs"]["steps"], {"inputs": given}, file.parent)

    def job(self, workflow: str, name: str, /, **inputs: str) -> bool:
        """Run a job of a workflow; return whether all of its steps succeeded."""
        steps = yaml.safe_load((GITHUB / "workflows" / workflow).read_text())["jobs"][name]["steps"]
        return self._run(steps, {"inputs": inputs}, self.workspace)

    def start(self, block: str, folder: Path, env: Mapping[str, str]) -> subprocess.Popen[str]:
        """Start a `run:` block, as `shell: bash` does."""
        script = self.programs.with_name("step.sh")
        script.write_text(block)
        files = {"GITHUB_OUTPUT": str(self.output), "GITHUB_STEP_SUMMARY": str(self.summary)}
        machine = {name: v for name, v in os.environ.items() if not name.startswith("PYTEST_")}
        machine["PATH"] = f"{self.programs}:/usr/bin:/bin"
        machine["PYTHONPATH"] = str(ROOT)
        machine["PYTEST_ADDOPTS"] = "-p no:hypothesispytest"  # a runner need not have it
        return subprocess.Popen(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", script],
            cwd=self.workspace,
            env=machine | files | {"GITHUB_ACTION_PATH": str(folder)} | dict(env),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def outputs(self) -> dict[str, str]:
        """What was written to GITHUB_OUTPUT; the last line of a name counts."""
        lines = self.output.read_text().splitlines() if self.output.exists() else []
        return dict(line.split("=", 1) for line in lines)

    def _run(self, steps: list[dict[str, Any]], context: dict[str, Any], folder: Path) -> bool:
        context = context | {"steps": {}}
        well = True
        for step in steps:
            outcome = "skipped"
            if _wanted(step.get("if", ""), context, well):
                outcome = "success" if self._step(step, context, folder) else "failure"
            context["steps"][step.get("id")] = {"outcome": outcome, "outputs": self.outputs}
            well = well and outcome != "failure"
        return well

    def _step(self, step: dict[str, Any], context: dict[str, Any], folder: Path) -> bool:
        values = {
            name: _filled(str(value), context)
            for name, value in (step.get("env") or step.get("with") or {}).items()
        }
        if "uses" in step:
            self.used.append((step["uses"].partition("@")[0], values))
            return True
        process = self.start(step["run"], folder, values)
        self.log += process.communicate(timeout=240)[0]
        return process.returncode == 0


def runs(file: Path) -> Iterator[str]:
    """Yield every `run:` block of an action or a workflow."""
    data = yaml.safe_load(file.read_text())
    jobs = data["jobs"].values() if "jobs" in data else [data["runs"]]
    for job in jobs:
        yield from (step["run"] for step in job["steps"] if "run" in step)


def _looked_up(name: str, context: Mapping[str, Any]) -> str:
    value: Any = context
    for part in name.split("."):
        value = value.get(part, "") if isinstance(value, Mapping) else ""
    return str(value)


def _filled(text: str, context: Mapping[str, Any]) -> str:
    return re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda found: _looked_up(found[1], context), text)


def _wanted(condition: str, context: Mapping[str, Any], well: bool) -> bool:
    """Whether a step runs: every term of a condition holds; without `always()`, success is one."""
    terms = [term.strip() for term in condition.split("&&") if term.strip()]
    if "always()" not in terms and not well:
        return False
    for term in terms:
        if term != "always()":
            name, operator, value = term.split(" ", 2)
            if (_looked_up(name, context) == value.strip("'")) != (operator == "=="):
                return False
    return True
