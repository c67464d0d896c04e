"""Messages between a rank and the process that controls it: frozen plain data, always small.

Values that may be large are sent as a payload. So neither side ever blocks in a send, or in the
middle of a receive, because the other side has stopped.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_precision.ranks.state.leaks import Leak

TEXT_CHARACTERS = 16_000
"""Most characters of a traceback or an exception's text; both fit into a socket's buffer."""


MORE_TIME = "If it only needs more time: --precision-timeout SECONDS, or the marker's"
"""Advice to whoever reads that a rank did not answer in time."""


@dataclass(frozen=True, slots=True)
class RunJob:
    """A message that asks a rank to call a function.

    Attributes:
        job: the pickled `Job`.
        nonce: random text of this one run, which a valid answer repeats.
    """

    job: Payload
    nonce: str


@dataclass(frozen=True, slots=True)
class Stop:
    """A message that tells a rank to leave its group and end."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A message from a rank: it has joined the process group.

    Attributes:
        device: name of its GPU, unique on the machine; empty without a GPU.
    """

    device: str = ""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A message from a rank: there are devices for `available` ranks only."""

    available: int


@dataclass(frozen=True, slots=True)
class Done:
    """A message from a rank: the function has returned, with this result.

    Attributes:
        result: result of the call.
        nonce: nonce of the `RunJob` that this answers.
        leaks: state that the job changed in the rank's process and did not restore.
        imported: whether the job imported modules of the user's while it ran.
        modules: pickled: the files of the user's modules that the rank has imported since its
            last answer, as `ImportedFiles.news` returns them.
        room: share of the memory of the rank's GPU that is free after the job; 1.0 without one.
    """

    result: Payload
    nonce: str
    leaks: tuple[Leak, ...] = ()
    imported: bool = False
    modules: Payload = field(default_factory=lambda: Payload(pickle.dumps(())))
    room: float = 1.0


@dataclass(frozen=True, slots=True)
class Skipped:
    """The last message of a rank: the function raised a skip of pytest or unittest.

    It ends because a peer that does not skip may wait for it in a collective.

    Attributes:
        when: seconds on the monotonic clock, which all processes of a machine share.
        reason: reason that the job gave.
    """

    when: float
    reason: str


@dataclass(frozen=True, slots=True)
class Raised:
    """The last message of a rank: the function, or the rank's start, raised an exception.

    Attributes:
        when: seconds on the monotonic clock, which all processes of a machine share.
        exited: whether the exception is SystemExit or KeyboardInterrupt.
        exception: qualified name of the exception's type.
        headline: type and text of the exception, as in the last lines of a traceback.
        traceback: traceback without the outer frames of `ranks`, including causes.
    """

    when: float
    exited: bool
    exception: str
    headline: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException, when: float) -> Raised:
        """Return a message that reports an exception as text, so that it need not pickle."""
        frames = error.__traceback__
        if isinstance(error, MemoryError):  # formatting needs memory: this frees what the job held
            traceback.clear_frames(frames)
        while frames is not None and _is_of_ranks(frames.tb_frame.f_globals):
            frames = frames.tb_next
        report = traceback.TracebackException(type(error), error, frames)
        said = "".join(report.format_exception_only())
        if isinstance(error, SyntaxError):  # a traceback names the place first
            said = f"{type(error).__name__}: {error}"
        return cls(
            when=when,
            exited=isinstance(error, (SystemExit, KeyboardInterrupt)),
            exception=f"{type(error).__module__}.{type(error).__qualname__}",
            headline=shortened(said.strip()),
            traceback=shortened("".join(report.format())),
        )


ToRank = RunJob | Stop


@dataclass(frozen=True, slots=True)
class Ended:
    """A stand-in for the last message of a rank whose process ended without one.

    Attributes:
        status: exit status, negative for a signal; None if it only closed its connection.
        when: seconds on the monotonic clock, when its end was seen.
    """

    status: int | None
    when: float


FromRank = Ready | Unavailable | Done | Skipped | Raised


def last_words(error: BaseException, when: float) -> Skipped | Raised:
    """Return a rank's last message after an exception: `Skipped` if it is a skip, else `Raised`."""
    if isinstance(error, _skips()):
        return Skipped(when, shortened(str(error)))
    return Raised.of(error, when)


def _skips() -> tuple[type[BaseException], ...]:
    # A job that raised one of these has imported it; otherwise a rank does not need pytest.
    skip_classes = (("_pytest.outcomes", "Skipped"), ("unittest.case", "SkipTest"))
    return tuple(
        getattr(sys.modules[home], name) for home, name in skip_classes if home in sys.modules
    )


def shortened(text: str) -> str:
    """Return a text without its middle, if it has more than `TEXT_CHARACTERS` characters."""
    if len(text) <= TEXT_CHARACTERS:
        return text
    half = TEXT_CHARACTERS // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def _is_of_ranks(names: dict[str, Any]) -> bool:
    """Return whether a frame with these globals is in code of this package that runs the ranks."""
    return f"{names.get('__package__')}.".startswith("pytest_precision.ranks.")


SENT_BYTES = 32_000
"""Number of bytes that fit into a socket's buffer, so that sending them never waits. Most jobs and
results are smaller; rewriting a file for each of them costs milliseconds on a journalled disk."""


@dataclass(frozen=True, slots=True)
class Payload:
    """A pickled value, or the path of a file with it."""

    content: bytes | str

    @classmethod
    def of(cls, pickled: bytes, file: Path) -> Payload:
        """Wrap pickled bytes, or write them to `file` and wrap its path if they are many."""
        if len(pickled) <= SENT_BYTES:
            return cls(pickled)
        file.write_bytes(pickled)
        return cls(str(file))

    def unpack(self) -> Any:
        """Return the unpickled value; whatever unpickling raises is not caught."""
        if isinstance(self.content, bytes):
            return pickle.loads(self.content)
        return pickle.loads(Path(self.content).read_bytes())
