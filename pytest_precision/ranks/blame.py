"""Make one error of a failed run of N ranks, whose cause is the first failure in time."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_precision.errors import Cause, RankError
from pytest_precision.ranks.process.messages import MORE_TIME, Ended, Raised, Skipped
from pytest_precision.ranks.watch import Received

SETTLE_SECONDS = 0.1
"""A rank that dies cannot send the time of its death, and its peers may report the consequences
before the controller notices it. So a death that is noticed this soon after the first message of a
failure counts as earlier. A peer that dies in native code because another rank raised takes longer:
a watchdog must notice first."""

SERVER_GONE = 255
"""The exit status that multiprocessing gives a process whose fork server is gone."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known at the end of a failed run: messages, exit statuses and stacks of ranks.

    Attributes:
        world_size: number of ranks.
        received: rank to what was received from it; a rank that did not answer is missing.
        started: when the job was sent (monotonic clock).
        seconds: deadline of the job in seconds.
        overdue: when collectives start to time out (monotonic clock): an exception after that is a
            symptom of a hang and not the failure itself. So is a death: NCCL's watchdog aborts.
        doing: name of the function that the ranks were running, for the message.
        stacks: stacks of the ranks that did not answer, or not until shortly before `overdue`.
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
        """The silent ranks: those whose answer to the function call never came."""
        return [rank for rank in range(self.world_size) if rank not in self.received]

    @property
    def aborted(self) -> list[int]:
        """The aborted ranks: they died after their stacks were taken, as when NCCL aborts them."""
        died = (rank for rank, answer in self.received.items() if isinstance(answer.message, Ended))
        return [rank for rank in died if rank in self.stacks]


def first_failure(received_answers: Mapping[int, Received]) -> int | None:
    """Return the rank whose exception, skip or process death came first; None if no rank failed."""
    ended = {
        rank: h for rank, h in received_answers.items() if isinstance(h.message, Raised | Skipped)
    }
    died = {rank: h.at for rank, h in received_answers.items() if isinstance(h.message, Ended)}
    settled = min((h.at for h in ended.values()), default=float("inf")) + SETTLE_SECONDS
    early = {rank: at for rank, at in died.items() if at <= settled}
    if early:
        return min(early, key=lambda rank: (early[rank], rank))
    stamps = {
        r: h.message.when for r, h in ended.items() if isinstance(h.message, Raised | Skipped)
    }
    return min(stamps, key=lambda rank: (stamps[rank], rank), default=None)


def is_hang(received_answers: Mapping[int, Received], overdue: float) -> bool:
    """Return whether the run hung: no rank failed before collectives timed out."""
    first = first_failure(received_answers)
    if first is None:
        return True
    answer = received_answers[first]
    if isinstance(answer.message, Ended):
        return answer.at >= overdue
    return isinstance(answer.message, Raised) and answer.message.when >= overdue


def failure_of(evidence: Evidence) -> RankError:
    """Return the error for a failed run: which rank failed first, how, and with what output."""
    first = first_failure(evidence.received)
    if is_hang(evidence.received, evidence.overdue):
        # If every rank answered, the rank whose collective timed out first is the one that hung. If
        # several are silent, a rank that does not react to a signal blocks the others, and a rank
        # outside a collective blocks those that wait for it in one.
        late = evidence.silent or evidence.aborted
        late = sorted(late, key=lambda rank: _patience(evidence.stacks.get(rank, "")))
        rank = late[0] if late else first
        assert rank is not None
        return _error(evidence, rank, "hung", f"hung: no answer within {evidence.seconds:g} s")
    assert first is not None
    message = evidence.received[first].message
    if isinstance(message, Skipped):
        return _error(evidence, first, "skipped", _words_on_skip(evidence, message.reason))
    if isinstance(message, Raised):
        cause: Cause = "exited" if message.exited else "raised"
        return _error(evidence, first, cause, f"{cause} {message.headline}", message.exception)
    assert isinstance(message, Ended)
    return _error(evidence, first, "died", f"died: {_ending(message.status)}")


def require_nonce(expected: str, echoes: Sequence[str], doing: str) -> None:
    """Raise unless every rank's answer repeats the nonce (random text) sent to it with this run.

    Args:
        expected: nonce that was sent to the ranks.
        echoes: nonce in each rank's answer, in rank order.
        doing: name of the function that the ranks were to run, for the message.

    Raises:
        RankError: a rank answered with another nonce.
    """
    for rank, echo in enumerate(echoes):
        if echo != expected:
            raise RankError(
                f"rank {rank} of {len(echoes)} in {doing} gave no proof that it ran: expected the "
                f"nonce {expected!r} of this job but got nonce={echo!r}; let the function write to "
                "no file descriptors that it did not open",
                rank,
                "unproven",
            )


def require_observations(counts: Sequence[int], doing: str) -> None:
    """Raise unless every rank has recorded at least one tensor.

    Args:
        counts: number of observations that each rank wrote, in rank order.
        doing: name of what was recorded, for the message.

    Raises:
        RankError: a rank wrote no observation.
    """
    for rank, count in enumerate(counts):
        if type(count) is not int or count < 1:
            raise RankError(
                f"rank {rank} of {len(counts)} in {doing} gave no proof that it trained: "
                f"expected observations but got count={count!r}; let the engine's `observe` yield "
                "some",
                rank,
                "unproven",
            )


def _error(
    evidence: Evidence, rank: int, cause: Cause, headline: str, exception: str = ""
) -> RankError:
    parts = [f"rank {rank} of {evidence.world_size} in {evidence.doing} {headline}"]
    others = [other for other in range(evidence.world_size) if other != rank]
    tellers = [rank, *others] if cause == "hung" else [rank]
    for teller in tellers:
        parts += _account(evidence, teller)
    parts += _block(f"End of the output of rank {rank}", evidence.tails.get(rank, ""))
    if others:
        lines = "\n".join(f"rank {other}: {_consequence(evidence, other)}" for other in others)
        parts += _block("The other ranks", lines)
    if cause == "hung":
        parts.append(f"\n{MORE_TIME}.")
    return RankError("\n".join(parts), rank, cause, exception)


def _patience(stacks: str) -> int:
    """Return a sort key (0, 1 or 2) by which the rank that likely blocks the others comes first.

    0 for a rank without stacks, 2 for one that waits in torch.distributed, 1 for any other.
    """
    if not stacks:
        return 0
    innermost = (thread.splitlines()[1:2] for thread in stacks.split("\n\n"))
    return 2 if any("/torch/distributed/" in frame for [frame] in filter(None, innermost)) else 1


def _account(evidence: Evidence, rank: int) -> list[str]:
    """Return a rank's traceback as text, or its Python stacks if it sent no answer."""
    if rank not in evidence.received or rank in evidence.aborted:
        stacks = evidence.stacks.get(rank) or "none: the process did not react; it may be stopped"
        return _block(f"Stacks of rank {rank}", stacks)
    message = evidence.received[rank].message
    return _block(f"Rank {rank}", message.traceback) if isinstance(message, Raised) else []


def _consequence(evidence: Evidence, rank: int) -> str:
    if rank not in evidence.received:
        return "no answer, ended"
    message = evidence.received[rank].message
    if isinstance(message, Raised):
        after = message.when - evidence.started
        return f"{message.headline.splitlines()[0]} (after {after:.3f} s)"
    if isinstance(message, Skipped):
        return f"skipped: {message.reason}"
    return _ending(message.status) if isinstance(message, Ended) else "done"


def _words_on_skip(evidence: Evidence, reason: str) -> str:
    skipped = [r for r in evidence.received if isinstance(evidence.received[r].message, Skipped)]
    others = [rank for rank in range(evidence.world_size) if rank not in skipped]
    return (
        f"skipped, but not all ranks did: {_list_of(skipped)} skipped, {_list_of(others)} did not; "
        f"skip on every rank, or in the test itself. The reason was: {reason}"
    )


def _list_of(ranks: list[int]) -> str:
    return f"rank {', '.join(map(str, sorted(ranks)))}"


def _ending(status: int | None) -> str:
    if status is None:
        return "closed its connection; its process, or the one that started it, may be gone"
    if status == SERVER_GONE:
        return f"exit status {status}: its own, or its fork server was killed and the rank with it"
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal has no name
        return f"killed by signal {-status}"


def _block(title: str, text: str) -> list[str]:
    return [f"\n{title}:\n{text.rstrip()}"] if text.strip() else []
