"""Hold what one rank has observed as columns of numbers, one row a tensor and moment.

A row says which tensor it is of, by the number of a slot, and where its bytes lie in the rank's
file, or their digest. A run of 10,000 tensors has a million rows, too many for an object each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pytest_precision.engine.observation import Place
from pytest_precision.trace.digests import memcmp
from pytest_precision.trace.moment import END, INIT, STATE, Moment

ROW = np.dtype([("slot", "<u4"), ("digested", "<u4"), ("first", "<u8"), ("second", "<u8")])
"""Number of the slot; 1 and both halves of a digest, or 0 and the offset of the bytes."""

Rows: TypeAlias = npt.NDArray[Any]
"""Rows of the dtype `ROW`."""

NO_ROWS: Rows = np.zeros(0, ROW)


class TensorSlot(NamedTuple):
    """The properties of a tensor that are the same whenever it is observed, such as its dtype."""

    kind: str
    name: str
    dtype: str
    piece: tuple[int, ...]
    shape: tuple[int, ...]
    place: Place
    local: bool
    nbytes: int


def rows_of(slots: Sequence[int], stored: Sequence[int | str]) -> Rows:
    """Return the rows of tensors.

    Args:
        slots: number of the slot of each.
        stored: offset of the bytes of each, or the digest in hexadecimal.
    """
    rows = np.zeros(len(slots), ROW)
    rows["slot"] = slots
    digested = np.array([type(where) is str for where in stored], bool)
    rows["digested"] = digested
    rows["first"][~digested] = [where for where in stored if type(where) is not str]
    texts = "".join(where for where in stored if type(where) is str)
    halves = np.frombuffer(bytes.fromhex(texts), ">u8").reshape(-1, 2)
    rows["first"][digested], rows["second"][digested] = halves[:, 0], halves[:, 1]
    return rows


class KindRows(NamedTuple):
    """The rows of all ranks, in order of ranks, of one kind of tensors at one moment.

    Attributes:
        slots: number of each row's slot among those of all ranks.
        rows: as the ranks have written them.
        addresses: where in memory the bytes lie of rows without a digest.
        sizes: numbers of bytes.
    """

    slots: npt.NDArray[np.int64]
    rows: Rows
    addresses: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.int64]

    def of(self, selected: npt.NDArray[np.intp]) -> KindRows:
        """Return some of these rows, by their numbers."""
        slots, rows, addresses, sizes = self
        return KindRows(slots[selected], rows[selected], addresses[selected], sizes[selected])

    def same_bytes(self, other: KindRows) -> bool:
        """Return whether each row has the bytes of the other's, and digests where it has them."""
        digested = self.rows["digested"] != 0
        if not np.array_equal(self.rows["digested"], other.rows["digested"]):
            return False
        if any(
            not np.array_equal(self.rows[half][digested], other.rows[half][digested])
            for half in ("first", "second")
        ):
            return False
        undigested = ~digested
        sizes = self.sizes[undigested]
        if not np.array_equal(sizes, other.sizes[undigested]):
            return False
        addresses = self.addresses[undigested].tolist(), other.addresses[undigested].tolist()
        return not any(map(memcmp, *addresses, sizes.tolist()))


@dataclass(frozen=True)
class RankRows:
    """The rows and the bytes that one rank wrote for one part of a run between restarts.

    Attributes:
        number: of the part of the run.
        rank: the rank that has written it.
        slots: what its tensors have in common at all moments.
        moments: moment to the rows of what was observed.
        data: the bytes.
        starts: by kind and name, what is shown only once it has changed was at first.
    """

    number: int
    rank: int
    slots: Sequence[TensorSlot]
    moments: Mapping[Moment, Rows]
    data: Tensor
    starts: Mapping[str, Mapping[str, str]]

    def at(self, moment: Moment, kinds: Collection[str] | None = None) -> Rows:
        """Return the rows of a moment, of some kinds of tensors if given."""
        rows = self.moments.get(moment, NO_ROWS)
        if kinds is None or not len(rows):
            return rows
        names, numbers = self._kinds
        among = np.array([name in kinds for name in names], bool)
        chosen_rows: Rows = rows[among[numbers[rows["slot"]]]]
        return chosen_rows

    def kinds_at(self, moment: Moment, *, digested: bool = False) -> set[str]:
        """Return the kinds of tensors of which there is a row at a moment.

        Args:
            moment: when.
            digested: whether to look only at rows with digests.
        """
        rows = self.at(moment)
        rows = rows[rows["digested"] != 0] if digested else rows
        names, numbers = self._kinds
        return {names[number] for number in np.unique(numbers[rows["slot"]])}

    def of_kind(self, moment: Moment, kind: str, slots_before: int) -> KindRows:
        """Return the rows of a kind of tensors at a moment, of this rank alone.

        Args:
            moment: when.
            kind: of the tensors.
            slots_before: number of the slots of ranks before this one.
        """
        rows = self.at(moment, {kind})
        slots = rows["slot"].astype(np.int64)
        addresses = rows["first"] + np.uint64(self.data.data_ptr())
        return KindRows(slots + slots_before, rows, addresses, self._sizes[slots])

    def later(self, step: int, kinds: Collection[str]) -> RankRows:
        """Return the rows from a train step on, which is then step 1; see `Trace.later`."""
        return replace(self, moments=dict(self._later_moments(step, kinds)))

    def until(self, step: int) -> RankRows:
        """Return the rows up to a train step; see `Trace.until`."""
        moments = {
            moment: rows
            for moment, rows in self.moments.items()
            if moment.step <= step and moment.phase != END
        }
        return replace(self, moments=moments)

    def _later_moments(self, step: int, kinds: Collection[str]) -> Iterator[tuple[Moment, Rows]]:
        for moment, rows in self.moments.items():
            if moment == INIT if step == 1 else moment.step == step - 1 and moment.phase == STATE:
                yield INIT, self.at(moment, kinds)
            elif moment.step >= step:
                yield moment._replace(op=moment.op - step + 1, step=moment.step - step + 1), rows

    @cached_property
    def _sizes(self) -> npt.NDArray[np.int64]:
        return np.array([slot.nbytes for slot in self.slots], np.int64)

    @cached_property
    def _kinds(self) -> tuple[list[str], npt.NDArray[Any]]:
        """Return the distinct kinds, and for each slot the index of its kind."""
        numbers: dict[str, int] = {}
        of_slots = [numbers.setdefault(slot.kind, len(numbers)) for slot in self.slots]
        return [*numbers], np.array(of_slots, np.uint32)
