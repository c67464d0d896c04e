"""SARIF: an audit as GitHub, GitLab and editors read the findings of static analysis (2.1.0)."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, NamedTuple
from urllib.parse import quote

from pytest_precision._visible import visible
from pytest_precision.auditing.audit import Audit
from pytest_precision.auditing.finding import AuditFinding
from pytest_precision.auditing.rules import RULES

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)


class BuiltAt(NamedTuple):
    """Where a set-up is built: a file, relative to the repository, and a line."""

    file: str
    line: int


def sarif(audit: Audit, place: BuiltAt) -> dict[str, Any]:
    """Return the log of one run.

    Args:
        audit: whose findings are the results.
        place: where all of them are shown.
    """
    rules = {finding.rule: finding for finding in audit.findings}
    driver = {
        "name": "pytest-precision",
        "version": version("pytest-precision"),
        "rules": [_rule(finding) for finding in rules.values()],
    }
    results = [_result(finding, [*rules], place) for finding in audit.findings]
    run = {"tool": {"driver": driver}, "results": results}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(finding: AuditFinding) -> dict[str, Any]:
    # GitHub takes no rule without all three.
    text = {"text": RULES[finding.rule]}
    remedy = {"text": f"{finding.remedy[0].upper()}{finding.remedy[1:]}."}
    return {"id": finding.rule, "shortDescription": text, "fullDescription": text, "help": remedy}


def _result(finding: AuditFinding, rules: list[str], place: BuiltAt) -> dict[str, Any]:
    return {
        "ruleId": finding.rule,
        "ruleIndex": rules.index(finding.rule),
        "level": finding.severity,
        "message": {"text": visible(finding.message)},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": quote(place.file)},
                    "region": {"startLine": place.line},
                },
                "logicalLocations": [
                    {"fullyQualifiedName": visible(name)} for name in finding.names
                ],
            }
        ],
    }
