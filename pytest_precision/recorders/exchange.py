"""Exchange: convert a recording to a safetensors file with a JSON sidecar, and back.

So one side of a comparison may come from JAX, from C++ or from a framework's own hook.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pytest_precision._destination import MAKER
from pytest_precision.engine.engine import STEP_PHASES
from pytest_precision.engine.observation import Chunk, Observation, Place, Span
from pytest_precision.errors import RecordingError, expected_but_got
from pytest_precision.recorders.exchange_files import METADATA, files_of_export, find_sidecar
from pytest_precision.recorders.lost_updates import UpdateMeter
from pytest_precision.trace.data_log import write_data
from pytest_precision.trace.manifest import RECORDED_RANKS, Manifest
from pytest_precision.trace.moment import END, INIT, Moment
from pytest_precision.trace.reader import Entry, Header
from pytest_precision.trace.sound import (
    sound_integer,
    sound_list,
    sound_object,
    sound_text,
    sound_texts,
)
from pytest_precision.trace.whole_recording import whole_recording
from pytest_precision.trace.writer import TraceWriter

SIDECAR = 1
"""Version of the sidecar."""

PORTABLE = {
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
}
"""Dtypes that every reader of safetensors knows; tensors of others are written as their bytes."""

MOST_STEPS = 1 << 20
"""Train steps that a sidecar may have; each is made, whether it holds anything or not."""


def export_recording(folder: Path, file: Path, *, force: bool = False) -> None:
    """Write the values of a recording as safetensors, with a JSON sidecar that describes them.

    If they cannot be written, the files of an earlier export stay as they are.

    Args:
        folder: of the recording.
        file: the safetensors file; the sidecar has its name with `.json` after it.
        force: whether files that this package did not make are replaced.

    Raises:
        RecordingError: there is none, or digests alone were kept of a step.
        OSError: a file cannot be written, or is of another maker.
    """
    written, sidecar = files_of_export(file, force=force)
    for destination in (written, sidecar):
        destination.expect_free()
    recording = whole_recording("recording", folder)
    trace = recording.trace
    manifest = recording.manifest
    assert manifest is not None
    tensors: dict[str, Tensor] = {}
    moments: list[dict[str, Any]] = []
    for moment in trace.moments:
        rows = []
        for entry in trace.entries(moment):
            if entry.offset is None:
                what = f"a digest of {entry.kind} {entry.name} at step {moment.step} in {folder}"
                again = manifest.again(f"0-{manifest.steps}")
                raise RecordingError(expected_but_got("values of all steps", what, f"run {again}"))
            key = f"{moment.step}/{moment.phase}/{entry.rank}/{entry.kind}/{entry.name}"
            tensors[key] = _portable(trace.tensor(entry))
            rows.append(_row(entry, key))
        moments.append({"step": moment.step, "phase": moment.phase, "tensors": rows})
    header = trace.header
    said = {
        "sidecar": SIDECAR,
        "generator": MAKER,
        "world_size": manifest.world_size,
        "environment": header.environment,
        "unobservable": header.unobservable,
        "moments": moments,
    }
    # Both are written before either is moved: a file of now beside a sidecar of then tells lies.
    with sidecar.placed() as beside, written.placed() as partial:
        try:
            save_file(tensors, partial, METADATA)
        except SafetensorError as error:
            raise OSError(f"{file}: {error}") from error
        beside.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")


def import_recording(file: Path, folder: Path) -> None:
    """Write a recording folder from a safetensors file and its JSON sidecar.

    Args:
        file: the safetensors file.
        folder: a new or an empty one.

    Raises:
        RecordingError: the two do not describe a run; nothing is in the folder then that passes for
            a recording.
        OSError: a file cannot be read or written.
    """
    try:
        _import(file, folder)
        whole_recording("recording", folder)
    except (ValueError, KeyError, RuntimeError, SafetensorError) as error:
        if isinstance(error, RecordingError):
            raise
        got = f"{file}: {error}"
        advice = "docs/reference/recording-format.md says what a sidecar has"
        raise RecordingError(expected_but_got("a recording to import", got, advice)) from error


def _import(file: Path, folder: Path) -> None:
    sidecar = find_sidecar(file)
    said = sound_object("the sidecar", json.loads(sidecar.read_text(encoding="utf-8")))
    sound_integer("sidecar", said.get("sidecar"), SIDECAR, SIDECAR)
    ranks = sound_integer("world_size", said.get("world_size", 1), 1, RECORDED_RANKS)
    texts = {
        name: sound_texts(name, said.get(name, {})) for name in ("unobservable", "environment")
    }
    tensors, seen = load_file(file), _by_moment(said)
    steps = max((step for step, _ in seen), default=0)
    sound_integer("the last step", steps, 1, MOST_STEPS)
    course = [*_course(steps)]
    if unknown := seen.keys() - {(moment.step, moment.phase) for moment in course}:
        step, phase = min(unknown)
        phases = f"init at step 0, {', '.join(STEP_PHASES)}, or {END} of the last step,"
        raise ValueError(expected_but_got(phases, f"{phase!r} at step {step}"))
    manifest = Manifest.now(sidecar, (), steps, range(steps + 1))
    manifest.write(folder, ranks)
    for rank in range(ranks):
        with TraceWriter(folder, rank) as writer:
            for moment in course:
                rows = seen.get((moment.step, moment.phase), [])
                own = [row for row in rows if sound_integer("a rank", row.get("rank", 0)) == rank]
                writer.add(moment, [_observation(row, tensors) for row in own])
            writer.finish(Header(ranks, texts["unobservable"], texts["environment"]))
        write_data(folder, rank)
        UpdateMeter().write(folder, rank)
        Manifest.seal(folder, rank, ranks)


def _by_moment(said: dict[str, Any]) -> dict[tuple[int, str], list[Any]]:
    found: dict[tuple[int, str], list[Any]] = {}
    for moment in sound_list("moments", said.get("moments")):
        own = sound_object("a moment", moment, ("step", "phase", "tensors"))
        key = sound_integer("a step", own["step"]), sound_text("a phase", own["phase"])
        found.setdefault(key, []).extend(sound_list("tensors", own["tensors"]))
    return found


def _course(steps: int) -> Iterator[Moment]:
    """Yield in order all moments of a recording: before step 1, after each phase, at the end."""
    yield INIT
    for step in range(1, steps + 1):
        for phase in STEP_PHASES:
            yield Moment(step - 1, "train", step, phase)
    yield Moment(steps - 1, "train", steps, END)


def _observation(row: Any, tensors: dict[str, Tensor]) -> Observation:
    key = sound_text("the key of a tensor", sound_object("a tensor", row)["key"])
    kind, name = sound_text("a kind", row["kind"]), sound_text("a name", row["name"])
    tensor = tensors[key]
    dtype = getattr(torch, sound_text("a dtype", row.get("dtype", "")), tensor.dtype)
    if dtype != tensor.dtype:  # one that the format lacks, written as its bytes
        piece = [sound_integer("a size", size) for size in sound_list("a shape", row.get("piece"))]
        tensor = tensor.view(dtype).view(piece)
    shape = tuple(
        sound_integer("a size", n) for n in sound_list("shape", row.get("shape", [*tensor.shape]))
    )
    start = sound_list("start", row.get("start", [0] * len(shape)))
    offsets = tuple(sound_integer("a start", n) for n in start)
    place: Place = Chunk(offsets, tuple(tensor.shape))
    if row.get("flat"):
        place = Span(offsets[0], offsets[0] + tensor.numel())
    return Observation(kind, name, tensor, shape, place, local=bool(row.get("local", False)))


def _portable(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor, as uint8 bytes if safetensors readers may lack its dtype."""
    held = tensor.detach().clone(memory_format=torch.contiguous_format)
    return held if held.dtype in PORTABLE else held.view(-1).view(torch.uint8)


def _row(entry: Entry, key: str) -> dict[str, Any]:
    """Return the JSON object that describes one tensor in the sidecar."""
    row: dict[str, Any] = {"kind": entry.kind, "name": entry.name, "key": key}
    row |= {"dtype": entry.dtype, "piece": [*entry.piece], "shape": [*entry.shape]}
    if entry.rank:
        row["rank"] = entry.rank
    if entry.local:
        row["local"] = True
    if isinstance(entry.place, Span):
        row |= {"flat": True, "start": [entry.place.start]}
    elif any(entry.place.offsets):
        row["start"] = [*entry.place.offsets]
    return row
