"""Find out which token each row of a forward is where nobody has told the sequences.

The sequences are those of the forward itself: a row of the batch without its padding, a part of a
packed row, or what follows the tokens in a cache. `compare` looks for them in the other recording.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_precision.rollout.cached_prefixes import CachedPrefixes, Prefix
from pytest_precision.rollout.module_outputs import POSITIONS, output_tensors
from pytest_precision.rollout.token_rows import NO_TOKEN, SEQUENCE, TokenRows, places_of
from pytest_precision.rollout.ways import logprobs_of

CACHE = "past_key_values"

LENGTHS = ("cu_seq_lens_q", "cu_seqlens", "cu_seqlens_q")
"""What cumulative lengths of packed sequences are called."""

UNKNOWN_ID = -1
"""The id of a token that is in a cache of which nobody knows the ids."""


class PlacedPiece(NamedTuple):
    """Tokens of one sequence in one row of a forward.

    Attributes:
        row: of the batch.
        columns: of the tokens.
        ids: of the sequence up to the last of them, with those in the cache.
        before: its tokens in the cache; None if there are none, or nobody knows them.
    """

    row: int
    columns: Tensor
    ids: Tensor
    before: Prefix | None

    @property
    def start(self) -> int:
        """Return how many tokens of the sequence are before those of the forward."""
        return len(self.ids) - len(self.columns)


class PlacedRows(TokenRows):
    """The rows of a forward, each named by the number of its sequence and the place in it.

    Args:
        prefixes: of the caches of earlier forwards.

    Attributes:
        pieces: of the sequences, by their numbers; empty if the forward has no ids.
    """

    def __init__(self, prefixes: CachedPrefixes) -> None:
        super().__init__([])
        self._prefixes = prefixes
        self._cache: Any = None
        self.pieces: list[PlacedPiece] = []

    def read(self, arguments: Sequence[Any], options: Mapping[str, Any]) -> None:
        """Take the rows from the ids of a forward, or else from its first tensor."""
        tensors = output_tensors((options.get("input_ids"), *arguments, *options.values()))
        if not tensors or not tensors[0].ndim:
            return
        first = tensors[0].detach()
        if first.is_floating_point() or first.ndim != 2:
            shape = first.shape[:2] if first.ndim > 2 else (len(first), 1)
            self.codes = torch.arange(shape[1]) + torch.arange(shape[0])[:, None] * SEQUENCE
            return
        self._cache = options.get(CACHE)
        self._read_ids(first.cpu(), options)

    def _read_ids(self, ids: Tensor, options: Mapping[str, Any]) -> None:
        places = places_of(ids, options)
        before = [*self._prefixes.of(self._cache)] if int(places.max()) >= ids.shape[1] else []
        self.codes = torch.full(ids.shape, NO_TOKEN)
        for row, starts in enumerate(starts_of(places, options)):
            present = (places[row] != NO_TOKEN).nonzero().flatten()
            for columns in torch.tensor_split(present, starts):
                if not len(columns):
                    continue
                prefix = before[row] if before and columns[0] == present[0] else None
                cached = int(places[row, columns[0]]) if columns[0] == present[0] else 0
                if prefix is not None and len(prefix.ids) != cached:
                    prefix = None
                first = [UNKNOWN_ID] * cached if prefix is None else prefix.ids
                whole = torch.cat([torch.tensor(first).long(), ids[row, columns].long()])
                code = len(self.pieces) * SEQUENCE + cached
                self.codes[row, columns] = torch.arange(code, code + len(columns))
                self.pieces.append(PlacedPiece(row, columns, whole, prefix))

    def logprobs(self, output: Any) -> Iterator[tuple[int, Tensor]]:
        """Yield the log-probabilities of the last tokens of each sequence, if there are logits."""
        logits = self._logits(output)
        if logits is None:
            return
        for number, piece in enumerate(self.pieces):
            shown = self._rows_of(piece, logits)
            ids = piece.ids[len(piece.ids) - len(shown) :]
            if (
                len(shown) == len(piece.columns)
                and piece.before
                and piece.before.logits is not None
            ):
                shown = torch.cat([piece.before.logits[None].to(shown.device), shown])
                ids = piece.ids[piece.start - 1 :]
            if len(ids) > 1:
                yield number, logprobs_of(shown.cpu(), ids)

    def keep_cache(self, output: Any) -> None:
        """Note which ids the rows of the cache stand for after the forward."""
        logits = self._logits(output)
        rows: list[Prefix | None] = [None] * (0 if self.codes is None else len(self.codes))
        for piece in self.pieces:
            shown = None if logits is None else self._rows_of(piece, logits)
            last = shown[-1].clone() if shown is not None and len(shown) else None
            rows[piece.row] = Prefix(piece.ids.tolist(), last)
        if len(self.pieces) == len(rows):  # of a packed row, nobody can tell which part goes on
            given_back = output.get(CACHE) if isinstance(output, Mapping) else None
            self._prefixes.keep([getattr(output, CACHE, given_back), self._cache], rows)

    def _logits(self, output: Any) -> Tensor | None:
        """Return the logits of the last columns of the forward; None if there are none."""
        tensors = output_tensors(output)
        if not self.pieces or self.codes is None or not tensors or tensors[0].ndim != 3:
            return None
        logits, (rows, columns) = tensors[0].detach(), self.codes.shape
        fits = len(logits) == rows and logits.shape[1] <= columns
        largest = max(int(piece.ids.max()) for piece in self.pieces)
        return logits if fits and largest < logits.shape[2] else None

    def _rows_of(self, piece: PlacedPiece, logits: Tensor) -> Tensor:
        """Return the logits of a piece, without columns of which the forward shows none."""
        assert self.codes is not None
        columns = piece.columns - (self.codes.shape[1] - logits.shape[1])
        return logits[piece.row][columns[columns >= 0].to(logits.device)]


def starts_of(places: Tensor, options: Mapping[str, Any]) -> Iterator[list[int]]:
    """Yield, for each row, before which of its tokens a new packed sequence begins.

    Args:
        places: of each row, see `places_of`.
        options: of the forward, of which cumulative lengths or positions are looked at.
    """
    lengths = next((options[name] for name in LENGTHS if options.get(name) is not None), None)
    positions = options.get(POSITIONS)
    for row, shown in enumerate(places):
        present = shown != NO_TOKEN
        if isinstance(lengths, Tensor) and len(places) == 1:
            yield [end for end in lengths.tolist() if 0 < end < int(present.sum())]
        elif isinstance(positions, Tensor) and positions.ndim == 2:
            row_positions = positions.detach().cpu().expand(*places.shape)[row][present]
            yield ((row_positions[1:] <= row_positions[:-1]).nonzero().flatten() + 1).tolist()
        else:
            yield []
