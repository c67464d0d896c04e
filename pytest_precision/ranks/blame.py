"""What the end of a run means: one error, whose cause is the first failure in time."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_precision.errors import Cause, RankError
from pytest_precision.ranks.process.messages import Raised, Skipped
from pytest_precision.ranks.watch import Died, Received

SETTLE_SECONDS = 0.1
"""A death cannot stamp itself: its peers feel it, and say so, before the controller hears of it. A
death noticed this soon after the first words of a failure came before them. The other way round, a
peer that dies natively of another's exception, takes longer: a watchdog has to notice."""

SERVER_GONE = 255
"""What multiprocessing has as the status of a process whose fork server is gone."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known at the end of a run that failed.

    Attributes:
        world_size: number of ranks.
        received: rank to what was received from it; a rank that did not answer is missing.
        started: when the ranks were asked (monotonic clock).
        seconds: that they had.
        overdue: the moment from which on a collective gives up by itself: an exception from then on
            is a sign of a hang, and no failure of its own.
        doing: the function that the ranks were running, for the text.
        stacks: of the ranks that did not answer.
        tails: the end of each rank's output.
    """

    world_size: int
    received: Mapping[int, Received]
    started: float
    seconds: float
    overdue: float
    doing: str
    stacks: Mapping[int, str]
    tails: Mapping[int, str]

    @property
    def silent(self) -> list[int]:
        """The ranks that did not answer."""
        return [rank for rank in range(self.world_size) if rank not in self.received]


def first_failure(received: Mapping[int, Received]) -> int | None:
    """The rank whose exception, skip or death came first; None where there is none of them."""
    ended = {rank: h for rank, h in received.items() if isinstance(h.what, Raised | Skipped)}
    died = {rank: h.at for rank, h in received.items() if isinstance(h.what, Died)}
    settled = min((h.at for h in ended.values()), default=float("inf")) + SETTLE_SECONDS
    early = {rank: at for rank, at in died.items() if at <= settled}
    if early:
        return min(early, key=lambda rank: (early[rank], rank))
    stamps = {r: h.what.when for r, h in ended.items() if isinstance(h.what, Raised | Skipped)}
    return min(stamps, key=lambda rank: (stamps[rank], rank), default=None)


def is_hang(received: Mapping[int, Received], overdue: float) -> bool:
    """Whether the run failed by time: nobody failed, or only collectives that gave up."""
    first = first_failure(received)
    if first is None:
        return True
    what = received[first].what
    return isinstance(what, Raised) and what.when >= overdue


def judge(evidence: Evidence) -> RankError:
    """The one error of a run in which not every rank answered as it should."""
    first = first_failure(evidence.received)
    if is_hang(evidence.received, evidence.overdue):
        # Where every rank answered, the one whose collective gave up is the one that hung.
        # Of several that are silent, one that does not react to a signal holds up the others, and
        # one that is in no collective those that wait for it there.
        silent = sorted(evidence.silent, key=lambda rank: _patience(evidence.stacks.get(rank, "")))
        rank = silent[0] if silent else first
        assert rank is not None
        return _error(evidence, rank, "hung", f"hung: no answer within {evidence.seconds:g} s")
    assert first is not None
    what = evidence.received[first].what
    if isinstance(what, Skipped):
        return _error(evidence, first, "skipped", _alone(evidence, what.reason))
    if isinstance(what, Raised):
        cause: Cause = "exited" if what.exited else "raised"
        return _error(evidence, first, cause, f"{cause} {what.headline}", what.exception)
    assert isinstance(what, Died)
    return _error(evidence, first, "died", f"died: {_ending(what.status)}")


def require_nonce(expected: str, echoes: Sequence[str], doing: str) -> None:
    """Takes an answer for one only if it is to this run of the job.

    Args:
        expected: what the ranks were asked with.
        echoes: what each rank answered with, in rank order.
        doing: the function that the ranks were to run, for the text.

    Raises:
        RankError: a rank answered with another.
    """
    for rank, echo in enumerate(echoes):
        if echo != expected:
            raise RankError(
                f"rank {rank} of {len(echoes)} in {doing} gave no proof that it ran: expected the "
                f"nonce {expected!r} of this job but got nonce={echo!r}; does the function write "
                "to descriptors that are not its own?",
                rank,
                "unproven",
            )


def require_observations(counts: Sequence[int], doing: str) -> None:
    """Takes a recording for one only if there is something in it.

    Args:
        counts: number of observations that each rank wrote, in rank order.
        doing: what was recorded, for the text.

    Raises:
        RankError: a rank wrote none.
    """
    for rank, count in enumerate(counts):
        if type(count) is not int or count < 1:
            raise RankError(
                f"rank {rank} of {len(counts)} in {doing} gave no proof that it trained: "
                f"expected observations but got count={count!r}; what does the engine's `observe` "
                "yield?",
                rank,
                "unproven",
            )


def _error(
    evidence: Evidence, rank: int, cause: Cause, headline: str, exception: str = ""
) -> RankError:
    parts = [f"rank {rank} of {evidence.world_size} in {evidence.doing} {headline}"]
    others = [other for other in range(evidence.world_size) if other != rank]
    told = [rank, *others] if cause == "hung" else [rank]
    for teller in told:
        parts += _account(evidence, teller)
    parts += _block(f"End of the output of rank {rank}", evidence.tails.get(rank, ""))
    if others:
        lines = "\n".join(f"rank {other}: {_consequence(evidence, other)}" for other in others)
        parts += _block("The other ranks", lines)
    if cause == "hung":
        parts.append("\nIf it only needs longer: --precision-timeout SECONDS, or the marker's own.")
    return RankError("\n".join(parts), rank, cause, exception)


def _patience(stacks: str) -> int:
    """How far a silent rank is from being the one that the others wait for."""
    if not stacks:
        return 0
    innermost = (thread.splitlines()[1:2] for thread in stacks.split("\n\n"))
    return 2 if any("/torch/distributed/" in frame for [frame] in filter(None, innermost)) else 1


def _account(evidence: Evidence, rank: int) -> list[str]:
    """What a rank was doing when it ended: its traceback, or its stacks."""
    if rank not in evidence.received:
        stacks = evidence.stacks.get(rank) or "none: the process did not react, it may be stopped"
        return _block(f"Stacks of rank {rank}", stacks)
    what = evidence.received[rank].what
    return _block(f"Rank {rank}", what.traceback) if isinstance(what, Raised) else []


def _consequence(evidence: Evidence, rank: int) -> str:
    if rank not in evidence.received:
        return "no answer, ended"
    what = evidence.received[rank].what
    if isinstance(what, Raised):
        after = what.when - evidence.started
        return f"{what.headline.splitlines()[0]} (after {after:.3f} s)"
    if isinstance(what, Skipped):
        return f"skipped: {what.reason}"
    return _ending(what.status) if isinstance(what, Died) else "done"


def _alone(evidence: Evidence, reason: str) -> str:
    skipped = [r for r in evidence.received if isinstance(evidence.received[r].what, Skipped)]
    others = [rank for rank in range(evidence.world_size) if rank not in skipped]
    return (
        f"skipped, and not all ranks did: {_listed(skipped)} skipped, {_listed(others)} did not; "
        f"skip on every rank alike, or in the test itself. The reason was: {reason}"
    )


def _listed(ranks: list[int]) -> str:
    return f"rank {', '.join(map(str, sorted(ranks)))}"


def _ending(status: int | None) -> str:
    if status is None:
        return "closed its connection; its process, or the one that holds it, may be gone"
    if status == SERVER_GONE:
        return f"exit status {status}: its own, or its fork server was killed, and it with that"
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal has no name
        return f"killed by signal {-status}"


def _block(title: str, text: str) -> list[str]:
    return [f"\n{title}:\n{text.rstrip()}"] if text.strip() else []
