"""What the controller and a rank say to each other: frozen plain data, and always small.

Whatever may be large travels as a payload. So neither side ever blocks in a send, or in the middle
of a receive, because the other one has stopped.
"""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass
from typing import Any

from pytest_precision.ranks.code.import_path import ImportPath
from pytest_precision.ranks.process.payload import Payload
from pytest_precision.ranks.state.leaks import Leak

LONGEST = 16_000
"""Characters of a traceback or an exception's text; both fit into a socket's buffer."""


@dataclass(frozen=True, slots=True)
class RunJob:
    """To a rank: run this job.

    Attributes:
        job: what to call.
        nonce: of this one run; an answer without it is none.
    """

    job: Payload
    nonce: str


@dataclass(frozen=True, slots=True)
class Stop:
    """To a rank: leave."""


@dataclass(frozen=True, slots=True)
class Ready:
    """From a rank: it is in the process group.

    Attributes:
        device: name of its GPU, unique on the machine; empty without.
    """

    device: str = ""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """From a rank: there are devices for only `available` ranks."""

    available: int


@dataclass(frozen=True, slots=True)
class Done:
    """From a rank: the job is done.

    Attributes:
        result: of the call.
        nonce: that the rank was asked with.
        leaks: what the job has left behind in the rank's process.
        late: modules of the user's own that the job imported while it ran.
    """

    result: Payload
    nonce: str
    leaks: tuple[Leak, ...] = ()
    late: tuple[ImportPath, ...] = ()


@dataclass(frozen=True, slots=True)
class Skipped:
    """From a rank, its last words: the job asked to be skipped, and the rank leaves.

    It leaves since a peer that does not skip may wait for it in a collective.

    Attributes:
        when: seconds on the monotonic clock, which all processes of a machine share.
        reason: that was given.
    """

    when: float
    reason: str


@dataclass(frozen=True, slots=True)
class Raised:
    """From a rank, its last words: what it was doing raised, and it leaves.

    Attributes:
        when: seconds on the monotonic clock, which all processes of a machine share.
        exited: whether it was SystemExit or KeyboardInterrupt.
        exception: qualified name of the type.
        headline: type and text, as the last lines of a traceback have them.
        traceback: of the frames outside this package, causes included.
    """

    when: float
    exited: bool
    exception: str
    headline: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException, when: float) -> Raised:
        """The words of an exception, which itself need not pickle."""
        frames = error.__traceback__
        if isinstance(error, MemoryError):  # words need memory too: what the job had is free now
            traceback.clear_frames(frames)
        while frames is not None and _is_of_ranks(frames.tb_frame.f_globals):
            frames = frames.tb_next
        told = traceback.TracebackException(type(error), error, frames)
        return cls(
            when=when,
            exited=isinstance(error, (SystemExit, KeyboardInterrupt)),
            exception=f"{type(error).__module__}.{type(error).__qualname__}",
            headline=cut("".join(told.format_exception_only()).strip()),
            traceback=cut("".join(told.format())),
        )


ToRank = RunJob | Stop
FromRank = Ready | Unavailable | Done | Skipped | Raised


def last_words(error: BaseException, when: float) -> Skipped | Raised:
    """What a rank says of the exception that ended its job."""
    if isinstance(error, _skips()):
        return Skipped(when, cut(str(error)))
    return Raised.of(error, when)


def _skips() -> tuple[type[BaseException], ...]:
    # A job that raised one of these has imported it; nobody else needs pytest in a rank.
    known = (("_pytest.outcomes", "Skipped"), ("unittest.case", "SkipTest"))
    return tuple(getattr(sys.modules[home], name) for home, name in known if home in sys.modules)


def cut(text: str) -> str:
    """`text`, or its two ends where it is longer than `LONGEST`."""
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def _is_of_ranks(names: dict[str, Any]) -> bool:
    """Tell whether the globals of a frame are those of a module of `ranks`."""
    return f"{names.get('__package__')}.".startswith("pytest_precision.ranks.")
