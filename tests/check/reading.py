"""Layouts and a script whose numbers come from outside: files, modules, processes, the network."""

from __future__ import annotations

import ctypes
import functools
import importlib
import json
import os
import socket
import sqlite3
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pytest_precision import Engine, layouts

SCRIPT = """\
import json
import sys
from pathlib import Path

import torch

torch.manual_seed(0)
lr = {lr}
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 3)).square().mean().backward()
    optimizer.step()
"""


def scaled(workload: Any, cell: Any, factor: float) -> Engine:
    """AdamW from weights that are multiplied first."""
    model = workload.model(cell)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
    return Engine(workload, cell, model, torch.optim.AdamW(workload.groups(model)))


def from_text(workload: Any, cell: Any, file: str) -> Engine:
    """The factor is what a file says."""
    return scaled(workload, cell, float(Path(file).read_text()))


def from_helper(workload: Any, cell: Any, file: str) -> Engine:
    """The factor is a constant of a module that is found in `sys.path`."""
    return scaled(workload, cell, importlib.import_module(Path(file).stem).FACTOR)


@functools.cache
def _remembered(file: str) -> float:
    return float(Path(file).read_text())


def from_memory(workload: Any, cell: Any, file: str) -> Engine:
    """The factor is read once in a process."""
    return scaled(workload, cell, _remembered(file))


def from_memmap(workload: Any, cell: Any, file: str) -> Engine:
    """The factor is mapped by numpy."""
    return scaled(workload, cell, float(bytes(np.memmap(file, np.uint8, "r"))))


def from_numpy(workload: Any, cell: Any, file: str) -> Engine:
    """The factor is read by numpy."""
    return scaled(workload, cell, float(np.fromfile(file, np.uint8).tobytes()))


def from_folder(workload: Any, cell: Any, file: str) -> Engine:
    """The factor is the number of files in a folder."""
    return scaled(workload, cell, float(len(os.listdir(Path(file).parent))))


def from_database(workload: Any, cell: Any, file: str) -> Engine:
    """The factor is in a database."""
    with sqlite3.connect(file) as database:
        return scaled(workload, cell, database.execute("select factor from factors").fetchone()[0])


def from_default(workload: Any, cell: Any, file: str) -> Engine:
    """The factor is 2 where there is no file."""
    try:
        return from_text(workload, cell, file)
    except FileNotFoundError:
        return scaled(workload, cell, 2.0)


@layouts.fresh_ranks
def from_mapping(workload: Any, cell: Any, file: str) -> Engine:
    """The factor is mapped by torch itself."""
    return scaled(workload, cell, float(bytes(_mapped(file).tolist())))


@functools.cache
def _mapped(file: str) -> torch.Tensor:
    return torch.from_file(file, size=os.path.getsize(file), dtype=torch.uint8)


def from_descriptor(workload: Any, cell: Any, file: str) -> Engine:
    """The factor is read by the C library, which leaves the file open."""
    library, into = ctypes.CDLL(None), ctypes.create_string_buffer(100)
    library.read(library.open(file.encode(), os.O_RDONLY), into, 100)
    return scaled(workload, cell, float(into.value))


def from_command(workload: Any, cell: Any, file: str) -> Engine:
    """The factor is what another program prints."""
    return scaled(workload, cell, float(subprocess.check_output(["cat", file])))


def from_fork(workload: Any, cell: Any, file: str) -> Engine:
    """The factor is read by a fork."""
    ours, theirs = os.pipe()
    if not (child := os.fork()):
        os.write(theirs, Path(file).read_bytes())
        os._exit(0)
    os.waitpid(child, 0)
    return scaled(workload, cell, float(os.read(ours, 100)))


def from_shell(workload: Any, cell: Any, file: str) -> Engine:
    """The factor is copied by a shell that the C library starts."""
    with tempfile.TemporaryDirectory() as folder:
        ctypes.CDLL(None).system(f"cat '{file}' > '{folder}/copy'".encode())
        return from_text(workload, cell, f"{folder}/copy")


def from_socket(workload: Any, cell: Any, file: str) -> Engine:
    """The factor comes from a server whose address is in the file."""
    with socket.create_connection(tuple(json.loads(Path(file).read_text()))) as server:
        return scaled(workload, cell, float(server.recv(100)))


def from_fifo(workload: Any, cell: Any, file: str) -> Engine:
    """The factor is 1, and a pipe with a name is opened."""
    os.close(os.open(file, os.O_RDWR | os.O_NONBLOCK))
    return scaled(workload, cell, 1.0)


def from_beginning(workload: Any, cell: Any, file: str) -> Engine:
    """The factor is the beginning of a file."""
    with open(file, "rb") as lines:
        return scaled(workload, cell, float(lines.read(3)))


def removing(workload: Any, cell: Any, file: str) -> Engine:
    """The factor is read from a file that is removed then."""
    engine = from_text(workload, cell, file)
    Path(file).unlink()
    return engine


def writing(workload: Any, cell: Any, file: str) -> Engine:
    """The factor is what was written before, and another one is written."""
    engine = from_text(workload, cell, file)
    Path(file).write_text("3.0")
    return engine


def making(workload: Any, cell: Any, file: str) -> Engine:
    """The factor is read from files that are made here, in ways that are usual."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "text").write_text(Path(file).read_text())
        os.rename(Path(folder, "text"), Path(folder, "renamed"))
        torch.save(torch.tensor(float(Path(folder, "renamed").read_text())), f"{folder}/saved")
        assert sorted(os.listdir(folder)) == ["renamed", "saved"]
        factor = torch.load(f"{folder}/saved").item()
    with open(f"{file}.log", "a") as log:
        log.write("made\n")
    Path(f"{file}.out").write_text(str(factor))
    assert Path(f"{file}.out").read_text() == str(factor)
    return scaled(workload, cell, factor)
