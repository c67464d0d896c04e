"""Find out which token of which sequence each row of a forward is, by the arguments of the forward.

A row is a place in the batch: `(b, t)` of `input_ids`. Its token is found by its id and by how many
tokens stand before it in the cache and the mask, never by `position_ids`: a forward that is given
wrong positions is the defect that is looked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

SEQUENCE = 1 << 32
"""What the number of a sequence is multiplied by in the code of a token."""

NO_TOKEN = -1
"""The code of a row that is no token, such as padding."""

Token = tuple[int, int]
"""A sequence and a position in it."""


def coded(token: Token | None) -> int:
    """Return the code of a token; NO_TOKEN for padding."""
    return NO_TOKEN if token is None else token[0] * SEQUENCE + token[1]


def decoded(code: int) -> Token:
    """Return the token that a code stands for."""
    return code // SEQUENCE, code % SEQUENCE


class Strange(NamedTuple):
    """A row whose id is that of no sequence at its place.

    Attributes:
        sequence: the one that fits best up to it.
        position: of the row.
        identity: the id that the row has.
    """

    sequence: int
    position: int
    identity: int


class TokenRows:
    """The tokens of the rows of the forward that is running.

    Args:
        sequences: ids of each sequence.

    Attributes:
        codes: of each row, of shape [batch, tokens]; None where nothing is known of the forward.
        strange: the first row that fits no sequence; None if there is none.
    """

    def __init__(self, sequences: Sequence[Tensor]) -> None:
        self._sequences = [sequence.tolist() for sequence in sequences]
        self._covered = [[False] * len(sequence) for sequence in self._sequences]
        self._last: dict[int, int] = {}
        self.codes: Tensor | None = None
        self.strange: Strange | None = None

    @property
    def unused(self) -> list[int]:
        """Return the sequences of which no forward has had a token."""
        return [number for number, covered in enumerate(self._covered) if not any(covered)]

    def say(self, rows: Sequence[Sequence[Token | None]]) -> None:
        """Take from the side which token each row of the next forward is, None for padding."""
        self.codes = torch.tensor([[coded(token) for token in row] for row in rows])
        for row in rows:
            self._cover([token for token in row if token is not None])

    def read(self, arguments: Sequence[Any], options: Mapping[str, Any]) -> None:
        """Derive the tokens of a forward from its arguments, if it has ids.

        Args:
            arguments: positional ones of the forward.
            options: those with names.
        """
        ids = options.get("input_ids", arguments[0] if arguments else None)
        if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.ndim not in (1, 2):
            return
        ids = ids.detach().cpu().reshape(-1, ids.shape[-1])
        places = places_of(ids, options)
        self.codes = torch.full(ids.shape, NO_TOKEN)
        for row in range(ids.shape[0]):
            self._read_row(row, ids[row].tolist(), places[row].tolist())

    def _read_row(self, row: int, ids: list[int], places: list[int]) -> None:
        column = 0
        while column < len(ids):
            start = places[column]
            end = column + 1
            while end < len(ids) and start >= 0 and places[end] == places[end - 1] + 1:
                end += 1
            if start >= 0:
                self._read_run(row, column, ids[column:end], start)
            column = end

    def _read_run(self, row: int, column: int, ids: list[int], start: int) -> None:
        """Read neighbouring rows: a piece of a sequence, or several sequences that are packed."""
        assert self.codes is not None
        done, place = 0, start
        while done < len(ids):
            sequence, length = self._best(row, ids[done:], place)
            if not length:
                self._note(ids[done:], place)
                done, place = done + 1, 0
                continue
            first = coded((sequence, place))
            at = column + done
            self.codes[row, at : at + length] = torch.arange(first, first + length)
            self._cover([(sequence, place + offset) for offset in range(length)])
            self._last[row] = sequence
            done, place = done + length, 0

    def _best(self, row: int, ids: list[int], place: int) -> tuple[int, int]:
        """Return the sequence that a piece begins with, and how long; 0 if there is none."""
        best: tuple[bool, int, bool, int] = (False, 0, False, 0)
        for number, sequence in enumerate(self._sequences):
            length = common(sequence[place:], ids)
            needed = max(1, min(len(ids), len(sequence) - place - 1))
            if length < needed:
                continue
            continues = place > 0 and self._last.get(row) == number
            best = max(best, (continues, length, not self._covered[number][place], -number))
        return -best[3], best[1]

    def _cover(self, tokens: Sequence[Token]) -> None:
        for sequence, position in tokens:
            if sequence < len(self._covered) and position < len(self._covered[sequence]):
                self._covered[sequence][position] = True

    def _note(self, ids: list[int], place: int) -> None:
        if self.strange is not None or len(ids) < 2:
            return
        lengths = [common(sequence[place:], ids) for sequence in self._sequences]
        longest = max(lengths)
        if longest < len(ids):
            self.strange = Strange(lengths.index(longest), place + longest, ids[longest])


def common(sequence: list[int], ids: list[int]) -> int:
    """Return how many ids two lists have in common from the start."""
    length = 0
    for ours, theirs in zip(sequence, ids, strict=False):
        if ours != theirs:
            break
        length += 1
    return length


def places_of(ids: Tensor, options: Mapping[str, Any]) -> Tensor:
    """Return the number of tokens before each row in its sequence; NO_TOKEN for padding.

    Args:
        ids: of shape [batch, tokens].
        options: of the forward, of which the mask, `cache_position` and the cache are looked at.
    """
    mask = options.get("attention_mask")
    rows, tokens = ids.shape
    if isinstance(mask, Tensor) and mask.ndim == 2 and mask.shape[1] >= tokens:
        present = mask.detach().cpu() != 0
        places = present.long().cumsum(-1) - 1
        return torch.where(present, places, NO_TOKEN)[:, -tokens:].expand(rows, tokens)
    if isinstance(mask, Tensor) and mask.ndim == 4 and mask.shape[2] >= tokens:
        mask = mask.detach().cpu()[:, 0, -tokens:]
        allowed = mask if mask.dtype is torch.bool else mask == 0
        return (allowed.long().sum(-1) - 1).expand(rows, tokens)
    columns = options.get("cache_position")
    if not isinstance(columns, Tensor) or columns.shape != (tokens,):
        columns = cached_tokens(options) + torch.arange(tokens)
    return columns.detach().cpu().expand(rows, tokens)


def cached_tokens(options: Mapping[str, Any]) -> int:
    """Return how many tokens the cache of a forward holds before it."""
    cache = options.get("past_key_values")
    if cache is not None and hasattr(cache, "get_seq_length"):
        return int(cache.get_seq_length())
    if isinstance(cache, (tuple, list)) and cache and isinstance(cache[0], (tuple, list)):
        return int(cache[0][0].shape[-2])
    return 0
