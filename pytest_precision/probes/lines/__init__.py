"""The line of code that made the first wrong value, by a further run with a log of operations."""

from pytest_precision.registered import ProbeSpec

PROBE = ProbeSpec(
    name="lines",
    loop="pytest_precision.probes.lines.logged_script:recorded_log",
    names_line="pytest_precision.probes.lines.line_named:line_named",
    in_bare=True,
)
