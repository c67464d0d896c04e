"""Write one rank's observations as a trace: a binary file with an index."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from torch import Tensor

from pytest_precision.engine.observation import Observation, cloned
from pytest_precision.engine.readable import expect_readable
from pytest_precision.matrix.contract import dtype_name
from pytest_precision.trace.digests import bytes_of, digest, in_order, kept_as_it_is
from pytest_precision.trace.files import write_whole
from pytest_precision.trace.header import Header
from pytest_precision.trace.journal import Journal
from pytest_precision.trace.lin8_sums import DigestedPart
from pytest_precision.trace.moment import Moment
from pytest_precision.trace.named_digests import XXH3, digest_name_of_kind, named_digests
from pytest_precision.trace.rank_origin import RankOrigin
from pytest_precision.trace.rank_rows import Rows, TensorSlot, rows_of
from pytest_precision.trace.row_table import laid_out

ALIGNMENT = 64
"""Bytes that each tensor's offset is a multiple of, so that any dtype can be viewed in place."""

LARGE = 8 << 20
"""Bytes per tensor from which two threads are faster than one; xxhash releases the GIL while it
reads."""

ENDING_CHARACTERS = 200
"""Characters of an error that are kept of a run that it has ended."""

FirstShown: TypeAlias = Mapping[str, Mapping[str, str]]
"""By kind and name, what is shown only once it has changed was at first, in words."""

WRITTEN_ONCE = 4 << 10
"""Bytes per tensor from which equal bytes are written once: the weights that a forward reads are
those that the last step has left. Below it, writing again costs less than a digest."""


class TraceWriter:
    """Writes one rank's observations into a trace folder.

    Args:
        folder: an existing folder.
        rank: rank of this process.
        digests: see `Header`.
        threads: number of threads that compute digests of whole tensors.
        digest_name: name of the digests.
        origin: of this rank's files. If it is given, a journal is written, too, by which what is
            settled can be read although the rank does not finish.

    Raises:
        FileExistsError: the folder has a trace of this rank, which another process may be writing.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        *,
        digests: bool = False,
        threads: int = 1,
        digest_name: str = XXH3,
        origin: RankOrigin | None = None,
    ) -> None:
        self._index = folder / f"rank{rank}.json"
        self._digests = digests
        self._digest_name = digest_name
        self._file = open(folder / f"rank{rank}.bin", "xb")  # noqa: SIM115, closed by __exit__
        self._journal = None if origin is None else Journal(folder, rank, origin)
        self._end = self._nbytes = 0
        self._lost: OSError | None = None
        self._offsets: dict[str, int] = {}
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads)
        self._moments: dict[Moment, Rows] = {}
        self._slots: dict[TensorSlot, int] = {}
        self._last_slots: dict[tuple[str, str], tuple[tuple[Any, ...], int]] = {}

    def add(
        self,
        moment: Moment,
        observations: Sequence[Observation],
        *,
        digests: bool | None = None,
    ) -> None:
        """Write a moment's observations to the trace, in place of any earlier ones of it.

        A tensor that occurs twice among them is written once.

        Args:
            moment: when.
            observations: what.
            digests: whether digests are kept of this moment; as for the whole trace unless given.
        """
        digests = self._digests if digests is None else digests
        stored: list[int | str] = []
        slots: list[int] = []
        numbers: list[int] = []  # of each row, the place in `stored` of what it shows
        # What is given lives until the moment ends: an address that was freed and used again would
        # make two tensors look like one.
        views: dict[tuple[Any, ...], int] = {}
        to_digest: dict[str, dict[int, DigestedPart]] = {}
        earlier_observation: Observation | None = None
        form: tuple[Any, ...] = ()
        number = -1
        for observation in observations:
            if earlier_observation is None or not observation.shows_as(
                earlier_observation
            ):  # as options of groups do
                earlier_observation, tensor = observation, observation.tensor
                if not observation.digest:
                    expect_readable(observation.kind, observation.name, tensor)
                form = _form(observation)
                self._nbytes += tensor.nbytes
                name = self._digest_of(observation) if digests else ""
                view = *_memory(tensor), observation.digest, name, *form
                number = views.setdefault(view, len(stored))
                if number == len(stored):
                    stored.append("" if name else self._place_of(observation))
                    if name:
                        part = DigestedPart(tensor, observation.shape, observation.place)
                        to_digest.setdefault(name, {})[number] = part
            slots.append(self._slot_of(observation, form))
            numbers.append(number)
        for name, parts in to_digest.items():
            digested = self._all_digests(name, [*parts.values()])
            for number, text in zip(parts, digested, strict=True):
                stored[number] = text
        self._moments[moment] = rows_of(slots, [stored[number] for number in numbers])

    def _digest_of(self, observation: Observation) -> str:
        """Return the name of the digest to compute of a tensor; empty for its values."""
        kind = observation.kind
        if observation.digest or kept_as_it_is(kind, observation.tensor.nbytes):
            return ""
        return digest_name_of_kind(self._digest_name, kind)

    def _place_of(self, observation: Observation) -> int | str:
        """Write a tensor's values, and return where they are; or the digest that it has."""
        if observation.digest:
            return self._offsets.get(observation.digest, observation.digest)
        return self._write(observation.tensor.detach())

    def _slot_of(self, observation: Observation, form: tuple[Any, ...]) -> int:
        """Return the number of an observation's slot, which is that of the moment before, mostly.

        To look a slot up takes as long as to digest a small tensor, so that it is compared with
        the last one of its kind and name first.
        """
        named = observation.kind, observation.name
        known_form, number = self._last_slots.get(named, (None, -1))
        if known_form != form:
            dtype, piece, shape, place, local = form
            nbytes = observation.tensor.nbytes
            slot = TensorSlot(*named, dtype_name(dtype), tuple(piece), shape, place, local, nbytes)
            number = self._slots.setdefault(slot, len(self._slots))
            self._last_slots[named] = form, number
        return number

    def keep(self, observation: Observation) -> Observation:
        """Write a tensor's values now; return a stand-in without values to pass to `add` later.

        The stand-in of a large tensor has only a digest. What later phases overwrite is not copied
        for this.

        Raises:
            ValueError: for a tensor that cannot be read.
        """
        tensor = observation.tensor.detach()
        expect_readable(observation.kind, observation.name, tensor)
        ordered_tensor = in_order(tensor)
        if ordered_tensor.nbytes < WRITTEN_ONCE:
            return cloned(observation)
        return observation.with_tensor(tensor.to("meta"), self._once(ordered_tensor))

    @property
    def nbytes(self) -> int:
        """Return the number of bytes of all tensors observed so far, kept or not."""
        return self._nbytes

    @property
    def observations(self) -> int:
        """Return the number of observations written so far."""
        return sum(map(len, self._moments.values()))

    def _all_digests(self, name: str, parts: list[DigestedPart]) -> Iterable[str]:
        """Return the digest of this name of each part, in threads if it is one of large tensors."""
        tensors = [part.tensor for part in parts]
        nbytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        if name == XXH3 and self._threads > 1 and nbytes > LARGE * len(tensors):
            return self._digested_beside(tensors)
        return named_digests(name, parts)

    def _digested_beside(self, tensors: list[Tensor]) -> Iterator[str]:
        """Yield the digest of each tensor, computed in threads while the caller copies the next.

        Each thread has a current stream of its own: only on that of the caller is what the caller
        has queued done before a copy begins. A few copies exist at a time.
        """
        running: deque[Future[str]] = deque()
        for tensor in tensors:
            running.append(self._pool.submit(digest, in_order(tensor.detach())))
            if len(running) > self._threads:
                yield running.popleft().result()
        yield from (future.result() for future in running)

    def _write(self, tensor: Tensor) -> int:
        ordered_tensor = in_order(tensor)
        return (
            self._append(bytes_of(ordered_tensor))
            if ordered_tensor.nbytes < WRITTEN_ONCE
            else self._offsets[self._once(ordered_tensor)]
        )

    def _once(self, ordered_tensor: Tensor) -> str:
        """Write a tensor's bytes unless equal ones are written already; return their digest."""
        digested = digest(ordered_tensor)
        if digested not in self._offsets:
            self._offsets[digested] = self._append(bytes_of(ordered_tensor))
        return digested

    def _append(self, content: bytes | ctypes.Array[ctypes.c_char]) -> int:
        start = -(-self._end // ALIGNMENT) * ALIGNMENT
        try:
            padding = b"\0" * (start - self._end)
            self._file.write(padding)
            self._end = start + self._file.write(content)
        except OSError as error:
            self._lost = error
            raise
        if self._journal is not None:
            self._journal.cover(padding, content)
        return start

    def settle(self, described: Callable[[], tuple[Header, FirstShown]]) -> None:
        """Add to the journal, if there is one, what was written since the last time.

        Args:
            described: returns the header of the trace so far, and starts, both as of `finish`.

        Raises:
            OSError: it cannot be written.
        """
        if self._journal is None or not self._journal.lacks(self._moments):
            return
        self._file.flush()  # so that the journal names no bytes that nobody can read
        self._journal.add(self._indexed(*described()), self._slots, self._moments)

    def _indexed(self, header: Header, starts: FirstShown | None) -> dict[str, Any]:
        """Return the keys of an index but for those of the table."""
        return (
            asdict(header)
            | {"digests": self._digests, "digest": self._digest_name}
            | {"starts": starts or {}}
        )

    def finish(self, header: Header, starts: FirstShown | None = None) -> None:
        """Write the trace's index, without which the trace counts as unfinished.

        Args:
            header: what holds for the whole trace.
            starts: by kind and name, what is shown only once it has changed was at first, in the
                words of `described`.

        Raises:
            OSError: something could not be written, now or before: a loop may go on after errors.
        """
        if self._lost is not None:
            raise self._lost
        table = laid_out(self._slots, self._moments)
        start = self._append(table.content)
        self._file.close()
        index = {**self._indexed(header, starts), "table": start, **table.index_keys}
        write_whole(self._index, index)

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pool.shutdown()
        # After an error the trace is not whole, and that its last bytes have no room is no news.
        with nullcontext() if error is None else suppress(OSError):
            self._file.close()
        if self._journal is not None:
            if error is None:
                self._journal.close()
            else:
                with suppress(OSError):
                    self._journal.end(_in_words(error))


def _in_words(error: BaseException) -> str:
    """Return type and first line of an error."""
    first_line = [*str(error).splitlines(), ""][0]
    return f"{type(error).__name__}{': ' * bool(first_line)}{first_line:.{ENDING_CHARACTERS}}"


def _form(observation: Observation) -> tuple[Any, ...]:
    """Return dtype, shapes and place of an observation: its slot without kind and name."""
    tensor = observation.tensor
    return tensor.dtype, tensor.shape, observation.shape, observation.place, observation.local


def _memory(tensor: Tensor) -> tuple[Any, ...]:
    """Return a key that is equal for two tensors only if they view the same memory alike.

    A conjugate or negated view has all but the last two in common with what it is a view of.
    """
    return tensor.data_ptr(), tensor.stride(), tensor.is_conj(), tensor.is_neg()
