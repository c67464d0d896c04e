"""The page report.html beside report.json."""

from pytest_precision.registered import ReporterSpec

REPORTER = ReporterSpec("page", "pytest_precision.report.page.render:page_of_session")
