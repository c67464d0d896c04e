"""Read what one call of a recorded side has shown."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from pytest_precision.engine.kinds import SCORED_KINDS
from pytest_precision.errors import RecordingError, expected_but_got
from pytest_precision.parity.compare.logical_tensor import assemble
from pytest_precision.rollout.inference_weights import WeightTable, described_digest
from pytest_precision.rollout.module_outputs import ModuleOutputs
from pytest_precision.rollout.score_recording import IDS, MODULE, PLANTED, WAY
from pytest_precision.rollout.scored_case import Shown
from pytest_precision.rollout.scorer import Scores
from pytest_precision.rollout.shown_weights import ACTIVE, OPTIONAL
from pytest_precision.rollout.token_rows import SEQUENCE, TokenRows
from pytest_precision.trace.header import FORWARDS, SCORES
from pytest_precision.trace.lin8 import LIN8
from pytest_precision.trace.reader import Entry
from pytest_precision.trace.recording import Recording


class ShownCall:
    """What a side has shown in one call of `show_scores`, or in one step of an import.

    Args:
        side: the recording.
        step: number of the call.

    Attributes:
        side: the recording.
        scored: whether it shows log-probabilities, or had to.
        forwards: whether it is one of forwards, of which some do not score.
        logprobs: sequence to the log-probabilities of its last tokens.
        sequences: ids of each sequence; zeros where they are not shown.
        outputs: of the modules.
        measured: see `ScoredCase`.
        planted: see `ScoredCase`.
    """

    def __init__(self, side: Recording, step: int) -> None:
        self.side = side
        self._entries: dict[str, dict[str, list[Entry]]] = {}
        for moment in side.trace.moments:
            if moment.step == step or (step == 1 and not moment.step):
                for kind, named in side.trace.held(moment, SCORED_KINDS).items():
                    self._entries.setdefault(kind, {}).update(named)
        outputs = self._words("output")
        self.logprobs = {sequence_of(name): t for name, t in self._tensors("logprob")}
        self._ids = [tensor for first, _, tensor in outputs if first == IDS]
        self.forwards = FORWARDS in side.trace.header.environment
        self.scored = bool(self.logprobs) or SCORES in side.trace.header.environment
        rows = self.logprobs.values()
        self.sequences = self._ids or [torch.zeros(len(row) + 1).long() for row in rows]
        self.measured = {way: float(tensor) for first, way, tensor in outputs if first == WAY}
        self.planted = self._planted([words for words in outputs if words[0] == PLANTED])
        self._optional = frozenset(name for first, name, _ in outputs if first == OPTIONAL)
        active = [(*words.split(),) for first, words, _ in outputs if first == ACTIVE]
        self._active = active[0] if active else None
        self.outputs = ModuleOutputs(TokenRows([]))
        for first, words, tensor in outputs:
            if first == MODULE:
                self.outputs.restore(words, tensor)
        margins = dict(self._tensors("margin"))
        for router, experts in self._tensors("decision"):
            self.outputs.restore_choices(router, experts, margins[router])

    def _planted(
        self, shown: list[tuple[str, str, Tensor]]
    ) -> tuple[str, dict[int, Tensor]] | None:
        scores = {}
        name = ""
        for _, words, logprobs in shown:
            number, name = words.split(" ")
            scores[int(number)] = logprobs
        return (name, scores) if scores else None

    def shown(self) -> Shown:
        """Return it as what a side of a test shows."""
        rows = [row.tolist() for row in self._ids] or None
        recorded = Scores(self.logprobs, TokenRows([]), self.outputs, rows)
        return Shown({"recorded": recorded}, self.table())

    @property
    def has_ids(self) -> bool:
        """Return whether the ids of the sequences are shown."""
        return bool(self._ids)

    def starts(self) -> Iterator[tuple[Tensor, int]]:
        """Yield each sequence with the number of its tokens that were in a cache."""
        codes = [torch.from_numpy(self.outputs.of(name).codes) for name in self.outputs.names]
        shown = torch.cat(codes) if codes else torch.zeros(0).long()
        for number, ids in enumerate(self.sequences):
            places = shown[shown // SEQUENCE == number] % SEQUENCE
            yield ids, int(places.min()) if len(places) else 0

    def weight_key(self) -> object:
        """Return what tells these weights, and the adapters that compute, from others."""
        weights = self._of("weight").items()
        texts = frozenset((name, _text(piece)) for name, pieces in weights for piece in pieces)
        return texts, self._active

    def table(self) -> WeightTable | None:
        """Return what the side holds; None if it shows no weights."""
        weights = {name: self._weight(pieces) for name, pieces in self._of("weight").items()}
        deliveries: dict[str, tuple[str, tuple[str, ...]]] = {}
        wrong: dict[str, dict[str, str]] = {}
        for words, pieces in self._of("made_weight").items():
            name, *parts = words.split(" ")
            deliveries[name] = (_text(pieces[0]), tuple(parts))
        for words, pieces in self._of("wrong_weight").items():
            name, cause = words.split(" ", 1)
            wrong.setdefault(name, {}).setdefault(_text(pieces[0]), cause)
        shown = WeightTable(weights, self._optional, self._active, deliveries, wrong)
        return shown if weights else None

    def _weight(self, pieces: list[Entry]) -> Tensor | str:
        """Return a weight, put together of what ranks hold; or its digest.

        Raises:
            RecordingError: it cannot be put together.
        """
        joined = assemble(self.side.trace, pieces)
        if joined.fault is not None:
            got = f"weight {pieces[0].name} in {self.side.trace.folder}: {joined.fault.text}"
            raise RecordingError(expected_but_got("weights that are whole", got))
        whole = joined.tensor
        if whole is not None:
            return whole
        return described_digest(pieces[0].dtype, pieces[0].shape, joined.digest(LIN8))

    def _of(self, kind: str) -> dict[str, list[Entry]]:
        return self._entries.get(kind, {})

    def _tensors(self, kind: str) -> Iterator[tuple[str, Tensor]]:
        for name, pieces in self._of(kind).items():
            yield name, self.side.trace.tensor(pieces[0])

    def _words(self, kind: str) -> list[tuple[str, str, Tensor]]:
        """Return the first word of each name, the others, and the tensor."""
        return [(*name.partition(" ")[::2], tensor) for name, tensor in self._tensors(kind)]


def sequence_of(name: str) -> int:
    """Return the number of a sequence, from the name under which its log-probabilities are shown.

    Raises:
        RecordingError: it has none.
    """
    match = re.search(r"\d+$", name)
    if match is None:
        expected = "a logprob that is named by its sequence, such as 'sequence 0',"
        raise RecordingError(expected_but_got(expected, repr(name)))
    return int(match[0])


def _text(entry: Entry) -> str:
    return described_digest(entry.dtype, entry.shape, entry.digest)
