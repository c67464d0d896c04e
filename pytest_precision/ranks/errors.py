"""What a run on ranks can end with instead of results."""

from __future__ import annotations

from typing import Literal

from pytest_precision._visible import visible

Cause = Literal["raised", "exited", "died", "hung", "skipped", "unproven"]


class RankError(RuntimeError):
    """A rank failed, and this is the first failure of its group in time.

    The group is gone; the next run gets a new one. What the other ranks said stands in the text as
    a consequence, since a rank whose peer is gone fails too, a little later and with other words.

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


class DevicesBusyError(RuntimeError):
    """Another process of this machine did not let go of a device in time."""

    def __init__(self, name: str, holder: str, seconds: float) -> None:
        super().__init__(
            f"expected device {name} to be free within {seconds:g} s but process {holder} still "
            "has it; run fewer workers, set CUDA_VISIBLE_DEVICES to other devices, or give it "
            "longer: --precision-timeout SECONDS"
        )


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
