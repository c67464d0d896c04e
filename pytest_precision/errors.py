"""Every exception and warning of the package: its cause and its remedy."""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pytest_precision._visible import visible

if TYPE_CHECKING:
    from pytest_precision.parity.verdict import Verdict

_Error = TypeVar("_Error", bound=type[BaseException])

Cause = Literal["raised", "exited", "died", "hung", "skipped", "unproven"]


class InputMessage(str):
    """A message about bad input, in whose traceback pytest hides the frames of this package."""

    __slots__ = ()


def expected_but_got(expected: str, got: object, advice: str = "") -> InputMessage:
    """Return the message `expected … but got …; advice` for bad input.

    Args:
        expected: what would have been right.
        got: what was given instead; for a value use `named`.
        advice: the next step.
    """
    return InputMessage(f"expected {expected} but got {got}{'; ' * bool(advice)}{advice}")


def undecodable_byte(error: UnicodeDecodeError) -> str:
    """Return in words which byte of a text cannot be decoded, and in which line it stands."""
    line = error.object.count(b"\n", 0, error.start) + 1
    return f"byte {error.object[error.start]:#04x} in line {line}"


def is_bad_input(excinfo: Any) -> bool:
    """Return whether an error is about bad input, so that pytest hides this package's frames.

    Of any other error, each frame may matter.
    """
    error = excinfo.value
    return any(isinstance(argument, InputMessage) for argument in getattr(error, "args", ()))


__tracebackhide__ = is_bad_input


def named(name: str, value: object) -> str:
    """Return `name=value (type)`, as messages show a value."""
    return f"{name}={value!r} ({type(value).__name__})"


def expect_type(
    name: str, value: object, kind: type | tuple[type, ...], expected: str, advice: str
) -> None:
    """Raise TypeError unless a value has one of the expected types.

    Raises:
        TypeError: `value` is no `kind`.
    """
    if not isinstance(value, kind):
        raise TypeError(expected_but_got(expected, named(name, value), advice))


def expect_one_of(
    name: str, value: object, allowed_choices: Iterable[object], advice: str = ""
) -> None:
    """Raise ValueError unless a value is one of those allowed; `True` does not count as 1.

    Raises:
        ValueError: `value` is none of `allowed_choices`, which the message lists.
    """
    choices = [*allowed_choices]
    if not any(value == choice and type(value) is type(choice) for choice in choices):
        expected = f"{name} to be one of {', '.join(map(str, choices))}"
        raise ValueError(expected_but_got(expected, named(name, value), advice))


def expect_count(name: str, value: object, least: int, advice: str = "") -> None:
    """Raise an error unless a value is an int of at least `least`.

    Raises:
        TypeError: `value` is no int.
        ValueError: it is below `least`.
    """
    if type(value) is not int:
        raise TypeError(expected_but_got(f"an int from {least}", named(name, value), advice))
    if value < least:
        raise ValueError(expected_but_got(f"an int from {least}", named(name, value), advice))


def catchable(kind: _Error) -> _Error:
    """Make tracebacks name an error class by its public import path; return the class."""
    kind.__module__ = "pytest_precision"
    return kind


@catchable
class ParityError(AssertionError):
    """The candidate does not agree with its reference, or no meaningful comparison was possible.

    `parity.check` raises it for every verdict except `pass`. The first line names the defect; the
    command at the end of the message repeats the cell.

    Attributes:
        verdict: the verdict that the message describes.
    """

    def __init__(self, verdict: Verdict) -> None:
        super().__init__("\n".join([verdict.reason, *verdict.details]))
        self.verdict = verdict


@catchable
class AuditError(AssertionError):
    """An audit found a problem of severity `fail_on` or worse in a model or its optimizer.

    Each finding ends with its remedy; where it is meant, give `fail_on` a worse severity.
    """


@catchable
class NoSetupError(TypeError):
    """`audit` was given no model or no optimizer, or one of a type that it does not know.

    Give `audit` what the training loop is built of.
    """


_REMEDIES = {
    os.strerror(errno.EMFILE): "allow more open files: `ulimit -n 4096`",
    os.strerror(errno.ENOSPC): "make room where it was written; recordings are in the "
    "temporary folder, or in TMPDIR",
}
"""What to do where a machine says no, in a rank too, whose error comes as text."""


class SideFailed(Exception):  # noqa: N818, it reads as what happened
    """The candidate or the reference could not be recorded, so they cannot be compared.

    `parity.check` turns it into the verdict `error`.

    Args:
        side: `candidate` or `reference`.
        cause: exception that was raised while the side was recorded.

    Attributes:
        reason: one line that names the side.
        details: the further lines of the cause, such as a rank's traceback.
    """

    def __init__(self, side: str, cause: Exception) -> None:
        first_line, *self.details = (str(cause) or repr(cause)).splitlines()
        remedies = [f"; {remedy}" for text, remedy in _REMEDIES.items() if text in first_line]
        self.reason = f"the {side} failed: {first_line}{''.join(remedies)}"
        super().__init__(self.reason)


class PluginFailed(Exception):  # noqa: N818, it reads as what happened
    """A function that another plugin has registered raised, so that nothing was judged by it.

    `parity.check` turns it into the verdict `error`.

    Args:
        who: the judgement, and the path of the function.
        cause: what it raised.

    Attributes:
        details: the traceback.
    """

    def __init__(self, who: str, cause: Exception) -> None:
        self.details = "".join(traceback.format_exception(cause)).splitlines()
        super().__init__(f"{who} raised {type(cause).__name__}: {cause}")


@catchable
class RankError(RuntimeError):
    """A rank failed; the error shows the failure that happened first in its group of ranks.

    The group has been ended; the next run gets a new one. The message lists the failures of the
    other ranks as consequences: a rank whose peer is gone fails too, a little later and with a
    different error. Look at the rank that the first line names.

    Attributes:
        rank: the rank that failed first.
        cause: `raised` an exception; `exited` by SystemExit or KeyboardInterrupt; `died` without an
            answer (exit status or signal); `hung`, without an answer within the deadline; `skipped`
            while other ranks did not; `unproven`, with an answer that belongs to another job or
            contains no observations.
        exception: qualified name of the exception's type; empty if there was none.
    """

    def __init__(self, text: str, rank: int, cause: Cause, exception: str = "") -> None:
        super().__init__(visible(text))
        self.rank = rank
        self.cause = cause
        self.exception = exception


class RanksSkipped(RuntimeError):  # noqa: N818, it is an outcome and no error
    """What the ranks ran was skipped, as by `pytest.skip`; the message is the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(visible(reason))


class WorldSizeError(RuntimeError):
    """Fewer ranks can run in this environment than were requested: a reason to skip the test.

    Attributes:
        world_size: number of ranks that were requested.
        available: largest number of ranks that could run.
    """

    def __init__(self, world_size: int, available: int, limit: str) -> None:
        most = (
            f"at most {available} ranks, {limit},"
            if available
            else "a CUDA GPU, and none is visible,"
        )
        super().__init__(f"expected {most} but got world_size={world_size}")
        self.world_size = world_size
        self.available = available


@catchable
class DevicesBusyError(RuntimeError):
    """Another process on this machine did not release a device in time.

    Run fewer workers, give them other devices, or set a longer deadline.
    """

    def __init__(self, name: str, holder: str, seconds: float) -> None:
        super().__init__(
            f"expected device {name} to be free within {seconds:g} s but process {holder} still "
            "has it; run fewer workers, set CUDA_VISIBLE_DEVICES to other devices, or give it "
            "longer: --precision-timeout SECONDS"
        )


@catchable
class PrecisionLeakWarning(UserWarning):
    """A function that ran on the ranks changed process-wide state and did not restore it.

    The state could have changed the numbers of the next job, so the ranks were discarded. Restore
    the state in the function: in a `finally`, or with torch's context manager for it. With
    `precision_strict_isolation = true` this warning fails the test.
    """


class RefusedError(ConnectionError):
    """A process that torchrun or srun started cannot run a rank; the message says why."""


@catchable
class RecordingError(ValueError):
    """A folder holds no whole recording that this release can read, or two cannot be compared.

    The message says what is wrong; a recording is made by `python -m pytest_precision record`.
    """


@catchable
class WatchError(RuntimeError):
    """A watched run has shown that a rank computes something else, or a rank did not come.

    The message names the rank, its host and device, the tensor and the step.
    """


class RevisionError(ValueError):
    """A commit or installation cannot be compared with the current code; the message says why."""


class BaselineError(ValueError):
    """A file of expected results cannot be read or written; the message says what to do."""


class NoBaselineError(LookupError):
    """A test has no expected results in this environment; the message lists the ones with some."""


class ReportError(ValueError):
    """A file is not a report.json that this release can read; the message says why.

    Such a file is written by `pytest --precision-matrix --precision-report=DIR`.
    """


class NotMeasurableError(ValueError):
    """The exact update of a weight cannot be computed from an optimizer's state.

    Lost updates are then not measured for this optimizer; the rest of the check is unaffected.
    """


@catchable
class SequenceError(ValueError):
    """The text is no valid sequence of operations, as `train2-save` is; the message says where."""


class MatrixError(ValueError):
    """The arguments of a `precision_matrix` marker are not valid; the message lists the choices."""


@catchable
class BackendError(RuntimeError):
    """Quantization by Transformer Engine's kernels was requested, but this machine cannot do it.

    Use the backend `auto`, which takes native formats where they are available, or `emulated`.
    """
