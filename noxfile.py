"""The versions that the package supports: `nox` runs all of them, `nox -s tests-3.13` one.

CI has one Python and one torch; this is for a release, and for a machine that has the interpreters.
"""

from __future__ import annotations

import nox

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


@nox.session(python=["3.11"])
def checks(session: nox.Session) -> None:
    """Check style, types and the direction of imports."""
    _install(session)
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("mypy")
    session.run("lint-imports")
