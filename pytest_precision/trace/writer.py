"""Write one rank's observations as a trace: a binary file with an index."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor

from pytest_precision.engine.observation import Chunk, Observation, Place, cloned
from pytest_precision.engine.readable import expect_readable
from pytest_precision.matrix.contract import dtype_name
from pytest_precision.trace.digests import bytes_of, digest, in_order, kept_as_it_is
from pytest_precision.trace.files import write_whole
from pytest_precision.trace.lin8_sums import DigestedPart
from pytest_precision.trace.moment import Moment
from pytest_precision.trace.named_digests import XXH3, digest_name_of_kind, named_digests
from pytest_precision.trace.reader import Header, TensorSlot

ALIGNMENT = 64
"""Bytes that each tensor's offset is a multiple of, so that any dtype can be viewed in place."""

LARGE = 8 << 20
"""Bytes per tensor from which two threads are faster than one; xxhash releases the GIL while it
reads."""

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
    ) -> None:
        self._index = folder / f"rank{rank}.json"
        self._digests = digests
        self._digest_name = digest_name
        self._file = open(folder / f"rank{rank}.bin", "xb")  # noqa: SIM115, closed by __exit__
        self._end = self._nbytes = 0
        self._lost: OSError | None = None
        self._offsets: dict[str, int] = {}
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads)
        self._moments: dict[Moment, list[tuple[int, int | str]]] = {}
        self._slots: dict[TensorSlot, int] = {}

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
        stored: dict[tuple[Any, ...], int | str] = {}
        entries: list[tuple[int, tuple[Any, ...]]] = []
        # Keeps every tensor alive until the moment ends: an address that was freed and used again
        # would make two tensors look like one.
        alive: list[Tensor] = []
        to_digest: dict[str, dict[tuple[Any, ...], DigestedPart]] = {}
        for observation in observations:
            tensor = observation.tensor.detach()
            if not observation.digest:
                expect_readable(observation.kind, observation.name, tensor)
            alive.append(tensor)
            part = DigestedPart(tensor, observation.shape, observation.place)
            identity = (*_memory(tensor), observation.digest, *part[1:])
            nbytes = tensor.numel() * tensor.element_size()
            self._nbytes += nbytes
            if observation.digest:
                offset = self._offsets.get(observation.digest)
                stored[identity] = observation.digest if offset is None else offset
            elif digests and not kept_as_it_is(observation.kind, nbytes):
                name = digest_name_of_kind(self._digest_name, observation.kind)
                to_digest.setdefault(name, {})[identity] = part
            elif identity not in stored:
                stored[identity] = self._write(tensor)
            slot = TensorSlot(
                observation.kind,
                observation.name,
                dtype_name(tensor.dtype),
                tuple(tensor.shape),
                observation.shape,
                observation.place,
                observation.local,
                nbytes,
            )
            entries.append((self._slots.setdefault(slot, len(self._slots)), identity))
        for name, parts in to_digest.items():
            stored.update(zip(parts, self._all_digests(name, [*parts.values()]), strict=True))
        self._moments[moment] = [(slot, stored[identity]) for slot, identity in entries]

    def keep(self, observation: Observation) -> Observation:
        """Write a tensor's values now; return a stand-in without values to pass to `add` later.

        The stand-in of a large tensor has only a digest. What later phases overwrite is not copied
        for this.

        Raises:
            ValueError: for a tensor that cannot be read.
        """
        tensor = observation.tensor.detach()
        expect_readable(observation.kind, observation.name, tensor)
        ordered = in_order(tensor)
        if ordered.nbytes < WRITTEN_ONCE:
            return cloned(observation)
        return replace(observation, tensor=tensor.to("meta"), digest=self._once(ordered))

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
        ordered = in_order(tensor)
        return (
            self._append(ordered)
            if ordered.nbytes < WRITTEN_ONCE
            else self._offsets[self._once(ordered)]
        )

    def _once(self, ordered: Tensor) -> str:
        """Write a tensor's bytes unless equal ones are written already; return their digest."""
        digested = digest(ordered)
        if digested not in self._offsets:
            self._offsets[digested] = self._append(ordered)
        return digested

    def _append(self, ordered: Tensor) -> int:
        start = -(-self._end // ALIGNMENT) * ALIGNMENT
        try:
            self._file.write(b"\0" * (start - self._end))
            self._end = start + self._file.write(bytes_of(ordered))
        except OSError as error:
            self._lost = error
            raise
        return start

    def finish(self, header: Header, starts: Mapping[str, Mapping[str, str]] | None = None) -> None:
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
        self._file.close()
        slots = [slot._replace(place=_plain(slot.place)) for slot in self._slots]
        index = (
            asdict(header)
            | {"digests": self._digests, "digest": self._digest_name}
            | {"slots": slots, "moments": [*self._moments.items()], "starts": starts or {}}
        )
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


def _memory(tensor: Tensor) -> tuple[Any, ...]:
    """Return a key that is equal for two tensors only if they are the same view of one memory.

    A conjugate or negated view has all but the last two in common with what it is a view of.
    """
    laid = tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
    return *laid, tensor.is_conj(), tensor.is_neg()


def _plain(place: Place) -> Any:
    return ("chunk", *place.offsets) if isinstance(place, Chunk) else ("span", place.start)
