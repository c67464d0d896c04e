"""The versions that the package supports: `nox` runs all of them, `nox -s tests-3.13` one.

CI has one Python and one torch; this is for a release, and for a machine that has the interpreters.
"""

from __future__ import annotations

import os

import nox

nox.options.sessions = ["tests", "lowest_pytest", "checks"]
nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = False

TORCH = {"3.10": "2.9.1", "3.11": "2.13.0", "3.13": "2.13.0"}
"""Each Python to the torch that it is tested with: the oldest pair, CI's, and the newest one."""

DEPENDENCIES = nox.project.load_toml("pyproject.toml")["project"]["dependencies"]

LOWEST_PYTEST = next(
    line.removeprefix("pytest>=") for line in DEPENDENCIES if line.startswith("pytest>=")
)


def _install(session: nox.Session) -> None:
    torch = TORCH[str(session.python)]
    # torch first, so that nothing that depends on it picks another build.
    session.install(f"torch=={torch}")
    session.install("--editable", ".[dev]")
    if torch == TORCH["3.10"]:
        # torchao 0.18 imports names that torch has since 2.10; without it, its tests are skipped.
        session.run("python", "-m", "pip", "uninstall", "--yes", "torchao")


@nox.session(python=[*TORCH])
def tests(session: nox.Session) -> None:
    """Run all tests; arguments behind `--` go to pytest."""
    _install(session)
    session.run("pytest", "--precision-matrix", *session.posargs)


@nox.session(python=["3.11"])
def lowest_pytest(session: nox.Session) -> None:
    """Run the plugin's own tests with the lowest pytest that pyproject.toml admits."""
    _install(session)
    session.install(f"pytest=={LOWEST_PYTEST}")
    session.run("pytest", "--precision-matrix", "tests/plugin", *session.posargs)


@nox.session(python=["3.13", "3.14"])
@nox.parametrize("ahead", ["torch", "torch-nightly", "pytest"])
def upcoming(session: nox.Session, ahead: str) -> None:
    """Run the plugin's own tests with what is not supported yet: a warning, no promise.

    The newest torch, its nightly build (from the index in TORCH_NIGHTLY_INDEX), or pytest's main.
    """
    index = os.environ.get("TORCH_NIGHTLY_INDEX")
    if ahead == "torch-nightly":
        if not index:
            session.skip("TORCH_NIGHTLY_INDEX names no package index for torch's nightly builds")
        session.install("--pre", "torch", "--index-url", index)
    else:
        session.install("torch" if ahead == "torch" else f"torch=={TORCH['3.13']}")
    session.install("--editable", ".[dev]")
    if ahead == "pytest":
        session.install("git+https://github.com/pytest-dev/pytest")
    session.run("pytest", "--precision-matrix", "tests/plugin", "tests/commands", *session.posargs)


@nox.session(python=["3.11"])
def checks(session: nox.Session) -> None:
    """Check style, types and the direction of imports."""
    _install(session)
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("mypy")
    session.run("lint-imports")
