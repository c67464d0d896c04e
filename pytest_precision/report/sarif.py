"""Write findings as SARIF 2.1.0, which GitHub, GitLab and editors read.

One writer, of the findings of an audit and of the reasons why cells failed. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple
from urllib.parse import quote

from pytest_precision._visible import visible
from pytest_precision.report.read import Report
from pytest_precision.report.reasons import Reason, fold
from pytest_precision.report.report_files import JSON_NAME
from pytest_precision.report.status import FAILING

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)


class SarifRule(NamedTuple):
    """A kind of finding: name, description and remedy."""

    name: str
    text: str
    help: str


class SarifResult(NamedTuple):
    """One SARIF result: the rule, level, message and place of a finding.

    Attributes:
        rule: its kind.
        level: `error`, `warning` or `note`.
        message: what was found.
        place: the file, relative to the repository, and the line, from 1, that show it.
        names: what it was found at: tensors, or cells.
    """

    rule: SarifRule
    level: str
    message: str
    place: tuple[str, int]
    names: Sequence[str]


RULES = {
    "fail": SarifRule(
        "parity-failed",
        "The candidate and the reference do not agree.",
        "Repeat the cell, and read the first line of the failure: it says what differs first.",
    ),
    "drift": SarifRule(
        "parity-drifted",
        "Both sides have moved since another commit or installation, and still agree.",
        "Look at how the two environments differ; --precision-drift=report lets it pass.",
    ),
    "vacuous": SarifRule(
        "parity-vacuous",
        "The check could not have failed, so that it proves nothing.",
        "Repeat the cell, and give it what the first line of the failure says is missing.",
    ),
    "error": SarifRule(
        "parity-error",
        "A rank or the test raised, died or hung before there was a verdict.",
        "Repeat the cell, and read the traceback and the output of the rank in the failure.",
    ),
}
"""Status of a cell that fails to its rule."""

UNFINISHED_RULE = SarifRule(
    "matrix-unfinished",
    "The session ended before all planned cells ran.",
    "Run the matrix again: what is not here has not been checked.",
)


def log(results: Iterable[SarifResult]) -> dict[str, Any]:
    """Return a SARIF log with these results, as JSON data."""
    sarif_results = [*results]
    rules = [*dict.fromkeys(result.rule for result in sarif_results)]
    driver = {
        "name": "pytest-precision",
        "version": version("pytest-precision"),
        "rules": [_rule(rule) for rule in rules],
    }
    run = {
        "tool": {"driver": driver},
        "results": [_result(result, rules) for result in sarif_results],
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def reasons(report: Report) -> list[SarifResult]:
    """Return one SARIF result per reason to fail, and one if the session was interrupted.

    Without that one, a service would take what was not run again for mended.
    """
    sarif_results = [_of_reason(reason) for reason in fold(report.cells, FAILING)]
    if not report.finished:
        text = f"not finished: {report.ran}"
        first = report.cells[0].test.partition("::")[0] if report.cells else JSON_NAME
        sarif_results.append(SarifResult(UNFINISHED_RULE, "error", text, (first, 1), ()))
    return sarif_results


def _of_reason(reason: Reason) -> SarifResult:
    names = [reason.cells[0].nodeid]
    return SarifResult(RULES[reason.status], "error", "\n".join(reason.lines), reason.place, names)


def _rule(rule: SarifRule) -> dict[str, Any]:
    # GitHub takes no rule without all three.
    text = {"text": rule.text}
    remedy = {"text": rule.help}
    return {"id": rule.name, "shortDescription": text, "fullDescription": text, "help": remedy}


def _result(result: SarifResult, rules: Sequence[SarifRule]) -> dict[str, Any]:
    file, line = result.place
    return {
        "ruleId": result.rule.name,
        "ruleIndex": rules.index(result.rule),
        "level": result.level,
        "message": {"text": visible(result.message)},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": quote(file)},
                    "region": {"startLine": line},
                },
                "logicalLocations": [
                    {"fullyQualifiedName": visible(name)} for name in result.names
                ],
            }
        ],
    }
