"""Exchange: convert a recording to a safetensors file with a JSON sidecar, and back.

So one side of a comparison may come from JAX, from C++ or from a framework's own hook.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pytest_precision._destination import MAKER
from pytest_precision.engine.observation import Span
from pytest_precision.errors import RecordingError, expected_but_got
from pytest_precision.exchange.export_files import METADATA, files_of_export, find_sidecar
from pytest_precision.exchange.sidecar import SIDECAR, Sidecar
from pytest_precision.trace.header import Header
from pytest_precision.trace.manifest import MANIFEST_NAME, Manifest
from pytest_precision.trace.rank_log import sealed_logs
from pytest_precision.trace.reader import Entry
from pytest_precision.trace.unfinished import readable_recording
from pytest_precision.trace.whole_recording import whole_recording
from pytest_precision.trace.writer import TraceWriter

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


def export_recording(folder: Path, file: Path, *, force: bool) -> None:
    """Write the values of a recording as safetensors, with a JSON sidecar that describes them.

    If they cannot be written, the files of an earlier export stay as they are.

    Args:
        folder: of the recording.
        file: the safetensors file; the sidecar has its name with `.json` after it.
        force: whether files that this package did not make are replaced.

    Raises:
        RecordingError: there is none, digests alone were kept of a step, or a tensor has a name
            that UTF-8 has not.
        OSError: a file cannot be written, or is of another maker.
    """
    written_destination, sidecar = files_of_export(file, force=force)
    for destination in (written_destination, sidecar):
        destination.expect_free()
    recording = readable_recording("recording", folder)
    if recording.endings:
        raise RecordingError(expected_but_got("a whole recording", recording.endings[0]))
    trace = recording.trace
    manifest = recording.manifest
    assert manifest is not None
    tensors: dict[str, Tensor] = {}
    moments: list[dict[str, Any]] = []
    for moment in trace.moments:
        rows = []
        for entry in trace.entries(moment):
            if entry.offset is None:
                got = f"a digest of {entry.kind} {entry.name} at step {moment.step} in {folder}"
                again = manifest.again(f"0-{manifest.steps}")
                raise RecordingError(expected_but_got("values of all steps", got, f"run {again}"))
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
    with sidecar.placed() as beside, written_destination.placed() as partial:
        _save(tensors, partial, file)
        beside.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")


def _save(tensors: dict[str, Tensor], partial: Path, file: Path) -> None:
    """Write the file that will be `file`."""
    try:
        save_file(tensors, partial, METADATA)
    except SafetensorError as error:
        raise OSError(f"{file}: {error}") from error
    except UnicodeEncodeError as error:
        expected = "names of tensors that UTF-8 has, as those of a safetensors file,"
        advice = "record the script with another name"
        raise RecordingError(expected_but_got(expected, repr(error.object), advice)) from error


def import_recording(file: Path, folder: Path) -> None:
    """Write a recording folder from a safetensors file and its JSON sidecar.

    Both are checked whole before anything is made, and nothing is left of what cannot be finished.

    Args:
        file: the safetensors file.
        folder: a new or an empty one.

    Raises:
        RecordingError: the two do not describe a run.
        OSError: a file cannot be read or written.
    """
    try:
        beside = find_sidecar(file)
        sidecar = Sidecar.read(beside, _tensors(file))
    except ValueError as error:
        got = f"{file}: {error}"
        advice = "docs/reference/recording-format.md says what a sidecar has"
        raise RecordingError(expected_but_got("a recording to import", got, advice)) from error
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / ".import"
    try:
        partial.mkdir()
        _import(sidecar, beside, partial)
        whole_recording("recording", partial)
        # Its manifest comes last: a folder without it is no recording.
        for path in sorted(partial.iterdir(), key=lambda path: path.name == MANIFEST_NAME):
            path.rename(folder / path.name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if is_new and not any(folder.iterdir()):
            folder.rmdir()


def _import(sidecar: Sidecar, path: Path, folder: Path) -> None:
    manifest = Manifest.now(path, (), sidecar.steps, range(sidecar.steps + 1))
    manifest.write(folder, sidecar.world_size)
    for rank in range(sidecar.world_size):
        with TraceWriter(folder, rank) as writer:
            for moment in sidecar.course:
                writer.add(moment, sidecar.shown.get((moment.step, moment.phase, rank), []))
            writer.finish(Header(sidecar.world_size, sidecar.unobservable, sidecar.environment))
        for log in sealed_logs():
            log.store(folder, rank, log.nothing())
        Manifest.seal(folder, rank, sidecar.world_size)


def _tensors(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except OSError:
        raise
    except Exception as error:  # of a stranger's file, its reader may say anything
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _portable(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor, as uint8 bytes if safetensors readers may lack its dtype."""
    copy = tensor.detach().clone(memory_format=torch.contiguous_format)
    return copy if copy.dtype in PORTABLE else copy.view(-1).view(torch.uint8)


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
