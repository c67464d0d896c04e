"""Find the operation of the reference that writes a tensor which the candidate leaves alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_precision.parity.culprit import Culprit
from pytest_precision.probes.lines.explain import worded
from pytest_precision.probes.lines.explain.calls import ReferenceLookup
from pytest_precision.probes.lines.explain.kind_words import ErrorKind
from pytest_precision.probes.lines.operations import OperationLog


def written_by_reference(
    candidate: Sequence[OperationLog],
    reference: Sequence[OperationLog],
    root: Path,
    differing: str,
    digests: tuple[str, str],
) -> Culprit | None:
    """Return the reference's operation that writes a tensor which the candidate leaves as it was.

    The candidate runs nothing at its line.

    Args:
        candidate: the logs of its ranks.
        reference: the logs of the reference's ranks.
        root: files are named relative to it.
        differing: kind and name of the tensor.
        digests: of the candidate's and the reference's, as a log has them.
    """
    operations = [operation for log in candidate for operation in log.operations]
    lines = {operation.line for operation in operations}
    if digests[0] in {value.digest for operation in operations for value in operation.results}:
        return None
    for call in reversed(ReferenceLookup(reference).makers.get(digests[1], [])):
        if call.line is not None and call.line.is_users and call.line not in lines:
            words = f"the reference writes {differing} here, a line that the candidate never runs"
            return worded.of_operation(call, ErrorKind("missing", words, call), root, rank=None)
    return None
