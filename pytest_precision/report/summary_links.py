"""Summary links: from the summary of a job to lines of the commit, to the page, and to the docs."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any, NamedTuple
from urllib.parse import quote

from pytest_precision._visible import visible
from pytest_precision.report.page.doc_links import of_kind
from pytest_precision.report.reasons import Reason


class SummaryLinks(NamedTuple):
    """Addresses that are known in a job of GitHub; elsewhere, those of the documentation alone.

    Attributes:
        artifacts: the list of them on the page of the run; empty where there is none.
        files: the files of the commit; likewise.
    """

    artifacts: str
    files: str

    @classmethod
    def of(cls, environment: Mapping[str, Any], variables: Mapping[str, str]) -> SummaryLinks:
        """Return the addresses in this job.

        Args:
            environment: of the report, whose commit need not be that of the job.
            variables: of this process.
        """
        names = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")
        server, repository, run = (quote(variables.get(name, ""), safe=":/") for name in names)
        if not (server and repository and run):
            return cls("", "")
        commits = {run["commit"] for run in environment.get("runs", []) if "commit" in run}
        commit = quote(commits.pop()) if len(commits) == 1 else ""
        home = f"{server}/{repository}"
        return cls(
            f"{home}/actions/runs/{run}#artifacts", f"{home}/blob/{commit}/" if commit else ""
        )

    def of_reason(self, reason: Reason) -> list[str]:
        """Return links to the line to blame and to what to look at where its kind differs first."""
        file, line = reason.place
        place = escape(visible(f"{file}:{line}"))
        address = f"{self.files}{quote(file)}#L{line}"
        found = [f'<a href="{address}">{place}</a>' if self.files else place]
        divergence = reason.check.entry.get("divergence")
        if divergence:
            found.append(f'<a href="{escape(of_kind(divergence["kind"]))}">where to look</a>')
        return found
