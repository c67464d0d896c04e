"""Find the operation that put a right value into the wrong tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_precision.parity.explain.lines.calls import SingleCall, calls, last_maker
from pytest_precision.parity.explain.lines.kinds import ErrorKind
from pytest_precision.trace.operations import Holding, OperationLog, Value


def misplaced(
    candidate: Sequence[OperationLog], reference: Sequence[OperationLog], kind: str
) -> tuple[SingleCall, ErrorKind, int] | None:
    """Return the operation that wrote another value into a tensor than the reference wrote there.

    Of the kind that differs first, it may have left what the reference has under no name, however
    the two sides name what they hold.

    Args:
        candidate: the logs of its ranks.
        reference: the logs of the reference's ranks.
        kind: of the tensor that differs first.

    Returns:
        the operation of the candidate, or the one of the reference that the candidate lacks; what
        it did otherwise; and the rank. None where all names hold the same.
    """
    for rank, (ours, theirs) in enumerate(zip(candidate, reference, strict=False)):
        for name, value, other in _unlike(ours, theirs):
            mine, expected = (_writer(log, v) for log, v in ((ours, value), (theirs, other)))
            if mine is not None:
                made = "as it was before"
                if expected is not None:
                    made = f"made by {expected.operation.name}{expected.at}"
                words = f"{name} is {_whose(value, ours)}, in the reference {made}"
                return mine, ErrorKind("inputs", words, expected), rank
            if expected is not None:
                words = f"the reference writes {name} here, the candidate leaves it as it was"
                return expected, ErrorKind("missing", words, expected), rank
    return next(_out_of_place(candidate, reference, kind), None)


def _out_of_place(
    candidate: Sequence[OperationLog], reference: Sequence[OperationLog], kind: str
) -> Iterator[tuple[SingleCall, ErrorKind, int]]:
    """Yield operations that left values in the candidate's tensors which the reference's lack."""
    left = {
        digest
        for log in reference
        for held, value in log.left.items()
        if held.kind == kind
        for digest in (value.digest, *value.pieces)
    }
    for rank, log in enumerate(candidate):
        for held, value in log.left.items():
            strange = held.kind == kind and not left.issuperset(value.pieces or (value.digest,))
            writer = _writer(log, value) if strange and value.digest not in left else None
            if writer is not None:
                words = f"{held} is {_whose(value, log)}, which the reference does not keep there"
                yield writer, ErrorKind("inputs", words), rank


def _unlike(ours: OperationLog, theirs: OperationLog) -> Iterator[tuple[Holding, Value, Value]]:
    """Yield name, candidate's and reference's value of tensors that differ at the run's end."""
    for name, value in ours.left.items():
        other = theirs.left.get(name)
        if other is not None and other.digest != value.digest and other.shape == value.shape:
            yield name, value, other


def _writer(log: OperationLog, value: Value) -> SingleCall | None:
    """Return the last operation that wrote a value, or a tensor containing it, to its memory."""

    def is_meant(one: Value) -> bool:
        return one.storage == value.storage and value.digest in (one.digest, *one.pieces)

    return last_maker([*calls(log.operations)], len(log.operations), is_meant)


def _whose(value: Value, log: OperationLog) -> str:
    for name, given in log.given.items():
        if given.digest == value.digest:
            return f"{name} as it was before"
    return "another value"
