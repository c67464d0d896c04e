"""The contract on tiers: the core imports no probe and no extra."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

import pytest

if sys.version_info < (3, 11):
    pytest.skip("pyproject.toml is read by tomllib, of Python 3.11", allow_module_level=True)

import tomllib
from grimp import ImportGraph
from tiers import TierContract

ROOT = Path(__file__).parents[1]

IGNORED_AT_MOST = 3
"""Imports of probes and extras by the core that are left; lower it with each that goes."""


def contract() -> dict[str, list[str]]:
    """Return the contract on tiers as pyproject.toml has it."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (options,) = [entry for entry in linter["contracts"] if entry["type"] == "tiers"]
    return options


def test_ignored_imports_only_become_fewer() -> None:
    """So that a new judgement does not go the old way, through the core."""
    assert len(contract()["ignore_imports"]) == IGNORED_AT_MOST


@cache
def owned() -> dict[str, str]:
    """Return each path of the table of owners to the heading that it stands under."""
    tiers = re.split(r"^## ", (ROOT / "guides" / "owners.md").read_text(), flags=re.MULTILINE)[1:]
    return {
        path: tier.partition("\n")[0].lower()
        for tier in tiers
        for path in re.findall(r"`([\w/]+(?:/|\.py)|tests/[\w/]+)`", tier)
    }


def test_each_probe_and_extra_has_an_owner() -> None:
    """The table has the modules of the contract, each under its tier, and names what is there."""
    for tier in ("probes", "extras"):
        for module in contract()[tier]:
            path = module.partition(".")[2].replace(".", "/")
            names = owned().keys() & {f"{path}/", f"{path}.py"}
            assert [owned()[name] for name in names] == [tier], module
    for path in owned():
        assert (ROOT / "pytest_precision" / path).exists() or (ROOT / path).exists(), path


@pytest.mark.parametrize(("imported", "kept"), [("core.b", True), ("probe.log", False)])
def test_an_import_of_a_probe_by_the_core_is_refused(imported: str, kept: bool) -> None:
    """Also one of a module below a package that is named."""
    graph = ImportGraph()
    for module in ("core", "core.a", "core.b", "probe", "probe.log"):
        graph.add_module(module)
    graph.add_import(importer="core.a", imported=imported)
    graph.add_import(importer="probe.log", imported="core.a")
    tiers = TierContract(
        name="tiers", session_options={}, contract_options={"probes": ["probe"], "extras": []}
    )
    assert tiers.check(graph, verbose=False).kept is kept
