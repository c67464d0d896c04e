"""Every exception and warning of the package: what it means, where it comes from, what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pytest_precision._visible import visible

if TYPE_CHECKING:
    from pytest_precision.parity.verdict import Verdict

Cause = Literal["raised", "exited", "died", "hung", "skipped", "unproven"]


def expected_but_got(what: str, got: object, advice: str = "") -> str:
    """Return the one form of a message about bad input: `expected … but got …; advice`.

    Args:
        what: that would have been right.
        got: what came instead; of a value use `named`.
        advice: the next step.
    """
    return f"expected {what} but got {got}{'; ' * bool(advice)}{advice}"


def named(name: str, value: object) -> str:
    """Return `name=value (type)`, as messages show what they were given."""
    return f"{name}={value!r} ({type(value).__name__})"


class ParityError(AssertionError):
    """A candidate does not agree with its reference, or the check proves nothing.

    `parity.check` raises it with every verdict but `pass`. The first line names the defect; the
    command at its end repeats the cell.

    Attributes:
        verdict: the same as plain data.
    """

    def __init__(self, verdict: Verdict) -> None:
        super().__init__("\n".join([verdict.reason, *verdict.details]))
        self.verdict = verdict


class SideFailed(Exception):  # noqa: N818, it reads as what happened
    """One side of a check could not be recorded, so nothing can be said of the other one either.

    `parity.check` makes a verdict `error` of it.

    Args:
        side: `candidate` or `reference`.
        cause: what was raised while it was recorded.

    Attributes:
        reason: one line that names the side.
        details: the further lines of the cause, such as a rank's traceback.
    """

    def __init__(self, side: str, cause: Exception) -> None:
        what, *self.details = (str(cause) or repr(cause)).splitlines()
        self.reason = f"the {side} failed: {what}"
        super().__init__(self.reason)


class RankError(RuntimeError):
    """A rank failed, and this is the first failure of its group in time.

    The group is gone; the next run gets a new one. What the other ranks said stands in the text as
    a consequence, since a rank whose peer is gone fails too, a little later and with other words.
    Look at the rank that the first line names.

    Attributes:
        rank: the rank that failed first.
        cause: `raised` an exception; `exited` by SystemExit or KeyboardInterrupt; `died` without a
            word (exit status or signal); `hung`, which is no answer within the deadline; `skipped`
            while others did not; `unproven`, an answer that is not of this job or that holds
            nothing.
        exception: qualified name of the exception's type, empty where there was none.
    """

    def __init__(self, text: str, rank: int, cause: Cause, exception: str = "") -> None:
        super().__init__(visible(text))
        self.rank = rank
        self.cause = cause
        self.exception = exception


class RanksSkipped(RuntimeError):  # noqa: N818, it is an outcome and no error
    """All ranks skipped the job; the text is their reason. The test is to be skipped with it."""

    def __init__(self, reason: str) -> None:
        super().__init__(visible(reason))


class WorldSizeError(RuntimeError):
    """So many ranks cannot be had here, whatever the job is: a reason to skip, not to fail.

    Attributes:
        asked: number of ranks that were asked for.
        available: number of ranks that there could be.
    """

    def __init__(self, asked: int, available: int, limit: str) -> None:
        super().__init__(f"expected at most {available} ranks, {limit}, but got world_size={asked}")
        self.asked = asked
        self.available = available


class DevicesBusyError(RuntimeError):
    """Another process of this machine did not let go of a device in time.

    Run fewer workers, give them other devices, or a longer deadline.
    """

    def __init__(self, name: str, holder: str, seconds: float) -> None:
        super().__init__(
            f"expected device {name} to be free within {seconds:g} s but process {holder} still "
            "has it; run fewer workers, set CUDA_VISIBLE_DEVICES to other devices, or give it "
            "longer: --precision-timeout SECONDS"
        )


class PrecisionLeakWarning(UserWarning):
    """A job changed process-global state and did not put it back.

    The next job would have computed something else for it, so its ranks were discarded. Put the
    state back in the function, in a `finally` or with the context manager that torch has for it.
    With `precision_strict_isolation = true` this fails the test.
    """

    # Where users import it from, and name it in `filterwarnings`.
    __module__ = "pytest_precision"


class RefusedError(ConnectionError):
    """A process of the launch will hold no rank; the text has its reason, to be mended there."""


class AlignmentError(ValueError):
    """The two traces have no moments in common that could be compared one by one.

    Their sequences train different numbers of steps; give both sides as many.
    """


class NotMeasurableError(ValueError):
    """What an optimizer keeps does not say what its update should have been.

    Lost updates are then not measured for it; nothing else changes.
    """


class SequenceError(ValueError):
    """The text is no sequence; the message names the position and the grammar."""


class MatrixError(ValueError):
    """The arguments of a marker make no matrix; the message says which, and what is known."""


class BackendError(RuntimeError):
    """Native formats were asked for that cannot be had.

    Ask for `auto`, which takes them where they are, or for `emulated`.
    """
