"""The figures of log-probabilities in the terminal, under the names of the curves."""

from pytest_precision.registered import ReporterSpec

REPORTER = ReporterSpec("scores", "pytest_precision.report.score_tables:lines_of_session")
