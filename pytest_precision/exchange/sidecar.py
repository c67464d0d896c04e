"""Read the sidecar of a safetensors file, and check all of it before a recording is made of it.

It may be a stranger's. Each error names the file, and the line or the path of the key.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_precision.engine.engine import STEP_PHASES
from pytest_precision.engine.observation import Chunk, Observation, Place, Span
from pytest_precision.errors import expected_but_got, undecodable_byte
from pytest_precision.matrix.contract import dtype_name
from pytest_precision.trace.manifest import RECORDED_RANKS
from pytest_precision.trace.moment import END, INIT, Moment
from pytest_precision.trace.sound import (
    sound_dtype,
    sound_flag,
    sound_integer,
    sound_list,
    sound_object,
    sound_place,
    sound_sizes,
    sound_text,
    sound_texts,
)

SIDECAR = 1
"""Version of the sidecar."""

KEYS = ("sidecar", "generator", "world_size", "environment", "unobservable", "moments")

TENSOR_KEYS = ("kind", "name", "key", "rank", "shape", "start", "flat", "local", "dtype", "piece")

MOST_STEPS = 1 << 20
"""Train steps that a sidecar may have; each is made, whether it holds anything or not."""

MOMENTS_OF_A_TENSOR = 1 << 12
"""Moments of all ranks that are made for each tensor of a sidecar, at most: most of them are empty
where a hook shows each hundredth step."""


@dataclass(frozen=True)
class Sidecar:
    """What a sidecar and its safetensors file say that a run has shown.

    Attributes:
        world_size: number of ranks.
        unobservable: kinds that the run cannot show, each with the reason.
        environment: what decides about the bits.
        steps: number of train steps.
        shown: step, phase and rank to what the rank shows then.
    """

    world_size: int
    unobservable: dict[str, str]
    environment: dict[str, str]
    steps: int
    shown: dict[tuple[int, str, int], list[Observation]]

    @property
    def course(self) -> Iterator[Moment]:
        """Yield in order all moments: before step 1, after each phase, at the end."""
        yield INIT
        for step in range(1, self.steps + 1):
            for phase in STEP_PHASES:
                yield Moment(step - 1, "train", step, phase)
        yield Moment(self.steps - 1, "train", self.steps, END)

    @classmethod
    def read(cls, path: Path, tensors: dict[str, Tensor]) -> Sidecar:
        """Read a sidecar.

        Args:
            path: of the JSON file.
            tensors: those of the safetensors file, by their names in it.

        Raises:
            ValueError: it describes no run; the message has the file and the line, or the key.
            OSError: it cannot be read.
        """
        try:
            return cls._of(_parsed(path.read_bytes()), tensors)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: {error}") from error

    @classmethod
    def _of(cls, content: Any, tensors: dict[str, Tensor]) -> Sidecar:
        fields = sound_object("the sidecar", content)
        _expect_known("the sidecar", fields, KEYS)
        sound_integer("sidecar", fields.get("sidecar"), SIDECAR, SIDECAR)
        sound_text("generator", fields.get("generator", ""))
        ranks = sound_integer("world_size", fields.get("world_size", 1), 1, RECORDED_RANKS)
        unobservable, environment = (
            sound_texts(name, fields.get(name, {})) for name in ("unobservable", "environment")
        )
        moments = [*_moments(sound_list("moments", fields.get("moments")))]
        steps = max((moment.step for moment in moments), default=0)
        sound_integer("the last step", steps, 1, MOST_STEPS)
        _expect_phases(moments, steps)
        _expect_few(ranks, steps, sum(len(moment.tensors) for moment in moments))
        return cls(
            ranks, unobservable, environment, steps, _seen_observations(moments, ranks, tensors)
        )


class _Shown(NamedTuple):
    """One entry of `moments`: the step and phase, the entries of `tensors`, and its path."""

    step: int
    phase: str
    tensors: list[Any]
    where: str


def _moments(rows: list[Any]) -> Iterator[_Shown]:
    for number, moment in enumerate(rows):
        where = f"moments[{number}]"
        fields = sound_object(where, moment, ("step", "phase", "tensors"))
        step = sound_integer(f"{where}.step", fields["step"])
        phase = sound_text(f"{where}.phase", fields["phase"])
        yield _Shown(step, phase, sound_list(f"{where}.tensors", fields["tensors"]), where)


def _parsed(encoded: bytes) -> Any:
    """Parse JSON that any reader takes, and that says each thing once.

    Raises:
        ValueError: it is none, with the line where that is known.
    """
    try:
        text = encoded.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(expected_but_got("text in UTF-8", undecodable_byte(error))) from error
    return json.loads(text, object_pairs_hook=_without_twins, parse_constant=_refused)


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twin = next(name for name in names if names.count(name) > 1)
        raise ValueError(expected_but_got("each key of an object once", f"{twin!r} twice"))
    return fields


def _refused(constant: str) -> None:
    raise ValueError(expected_but_got("numbers that JSON has", constant))


def _expect_known(where: str, fields: dict[str, Any], keys: tuple[str, ...]) -> None:
    for name in fields.keys() - {*keys}:
        raise ValueError(
            expected_but_got(f"{where} to have keys of {', '.join(keys)}", f"{name!r}")
        )


def _seen_observations(
    moments: Iterable[_Shown], ranks: int, tensors: dict[str, Tensor]
) -> dict[tuple[int, str, int], list[Observation]]:
    shown_observations: dict[tuple[int, str, int], list[Observation]] = {}
    named: set[tuple[int, str, int, str, str]] = set()
    for step, phase, rows, where in moments:
        for number, row in enumerate(rows):
            at = f"{where}.tensors[{number}]"
            rank, observation = _observation(at, row, ranks, tensors)
            which = step, phase, rank, observation.kind, observation.name
            if which in named:
                got = f"{observation.kind} of {observation.name!r} of rank {rank} again, {at}"
                raise ValueError(expected_but_got("each tensor of a rank once at a moment", got))
            named.add(which)
            shown_observations.setdefault((step, phase, rank), []).append(observation)
    return shown_observations


def _observation(
    where: str, row: Any, ranks: int, tensors: dict[str, Tensor]
) -> tuple[int, Observation]:
    """Return the rank and the observation that one entry of a sidecar's `tensors` describes."""
    fields = sound_object(where, row)
    _expect_known(where, fields, TENSOR_KEYS)
    kind, name, key = (
        sound_text(f"{where}.{field}", fields.get(field)) for field in TENSOR_KEYS[:3]
    )
    if key not in tensors:
        got = f"no tensor {key!r}, which {where}.key names"
        raise ValueError(expected_but_got("a tensor of the safetensors file", got))
    rank = sound_integer(f"{where}.rank", fields.get("rank", 0), 0, ranks - 1)
    flags = (
        sound_flag(f"{where}.{field}", fields.get(field, False)) for field in ("flat", "local")
    )
    flat, local = flags
    tensor = _tensor(where, fields, tensors[key])
    shape = sound_sizes(f"{where}.shape", fields.get("shape", [*tensor.shape]))
    start = sound_list(f"{where}.start", fields.get("start", [0] * (1 if flat else len(shape))))
    sound_place(f"{where}.start", ["span" if flat else "chunk", *start], [*tensor.shape], shape)
    place: Place = Chunk(tuple(start), tuple(tensor.shape))
    if flat:
        place = Span(start[0], start[0] + tensor.numel())
    return rank, Observation(kind, name, tensor, tuple(shape), place, local)


def _tensor(where: str, row: dict[str, Any], stored_tensor: Tensor) -> Tensor:
    """Return a tensor of the safetensors file in the dtype and shape that an entry says."""
    dtype = sound_dtype(f"{where}.dtype", row.get("dtype", dtype_name(stored_tensor.dtype)))
    piece = sound_sizes(f"{where}.piece", row.get("piece", [*stored_tensor.shape]))
    if dtype == stored_tensor.dtype:
        if piece != [*stored_tensor.shape]:
            expected = f"{where}.piece to be the shape of the tensor, {[*stored_tensor.shape]},"
            raise ValueError(expected_but_got(expected, piece))
        return stored_tensor
    if stored_tensor.dtype is not torch.uint8 or "piece" not in row:
        expected = f"{where}.dtype to be that of the tensor, or its bytes (U8) with a piece,"
        raise ValueError(expected_but_got(expected, f"{dtype} for {stored_tensor.dtype}"))
    if math.prod(piece) * dtype.itemsize != stored_tensor.numel():
        expected = f"{where}.piece to fill the {stored_tensor.numel()} bytes of the tensor"
        raise ValueError(expected_but_got(expected, f"{piece} of {dtype}"))
    return stored_tensor.reshape(-1).view(dtype).view(piece)


def _expect_phases(moments: Iterable[_Shown], steps: int) -> None:
    for step, phase, _, where in moments:
        allowed = (INIT.phase,) if step == 0 else STEP_PHASES
        if phase not in allowed and (step, phase) != (steps, END):
            phases = f"init at step 0, {', '.join(STEP_PHASES)}, or {END} of the last step,"
            raise ValueError(expected_but_got(phases, f"{phase!r} at step {step}, {where}"))


def _expect_few(ranks: int, steps: int, tensors: int) -> None:
    """Raise if few tensors ask for many files, or for many moments that are empty."""
    if ranks > max(1, tensors):
        advice = "write the number of ranks that hold some, and the rank of each tensor"
        expected = (
            f"world_size to be at most {max(1, tensors)}, the number of tensors of all moments"
        )
        raise ValueError(expected_but_got(expected, ranks, advice))
    most = MOMENTS_OF_A_TENSOR * max(1, tensors)
    if ranks * steps * len(STEP_PHASES) > most:
        advice = "number the steps from 1 without gaps"
        expected = f"at most {most} moments of all ranks for {tensors} tensors"
        raise ValueError(expected_but_got(expected, f"{steps} steps of {ranks} ranks", advice))
