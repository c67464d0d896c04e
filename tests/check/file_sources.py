"""Sources that are files: by every kind of name, of access and of format."""

from __future__ import annotations

import bz2
import configparser
import csv
import ctypes
import dbm.dumb
import fileinput
import gzip
import hashlib
import json
import linecache
import lzma
import mmap
import os
import pickle
import shelve
import shutil
import sqlite3
import struct
import tarfile
import tempfile
import xml.etree.ElementTree as ET
import zipfile
from contextlib import closing
from pathlib import Path

import numpy as np
import torch
import yaml
from safetensors.torch import load_file, save_file
from source import Source, text, text_in

NUMBER = text("number")


def same_status(folder: Path, value: float) -> None:
    """Write the file anew with the times that it had."""
    file = folder / "number"
    before = file.stat() if file.exists() else None
    NUMBER(folder, value)
    if before is not None:
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def replaced(folder: Path, value: float) -> None:
    """Put another file in the place of the one that was there."""
    text("new")(folder, value)
    os.replace(folder / "new", folder / "number")


def without_name(folder: Path, value: float) -> None:
    """Give a file that was made without a name the name of the one before."""
    descriptor = os.open(folder, os.O_TMPFILE | os.O_WRONLY)
    os.write(descriptor, str(value).encode())
    (folder / "number").unlink(missing_ok=True)
    # With a folder, Python calls linkat, which follows the link that /proc has.
    place = f"/proc/self/fd/{descriptor}"
    os.link(place, folder / "number", src_dir_fd=descriptor, follow_symlinks=True)
    os.close(descriptor)


def link_to_file(folder: Path, value: float) -> None:
    """Lead a link to another file."""
    text(str(value))(folder, value)
    (folder / "link").unlink(missing_ok=True)
    (folder / "link").symlink_to(str(value))


def link_to_folder(folder: Path, value: float) -> None:
    """Lead a link to another folder, above which there is another number."""
    (folder / str(value) / "inner").mkdir(parents=True)
    text("number")(folder / str(value), value)
    text("number")(folder / str(value) / "inner", value)
    (folder / "link").unlink(missing_ok=True)
    (folder / "link").symlink_to(folder / str(value) / "inner")


def hard_link(folder: Path, value: float) -> None:
    """Write a file by its other name."""
    if not (folder / "other").exists():
        NUMBER(folder, value)
        os.link(folder / "number", folder / "other")
    with (folder / "other").open("r+") as file:
        file.write(str(value))


def shared_memory(folder: Path) -> Path:
    """Return the name of a block of shared memory, which is that of the folder."""
    return Path("/dev/shm") / f"number-{hashlib.md5(bytes(folder)).hexdigest()}"


def in_memory(folder: Path, value: float) -> None:
    """Write a block of shared memory; its file goes with the second number."""
    shared_memory(folder).write_text(str(value), encoding="utf-8")


def out_of_memory(folder: Path) -> float:
    """Read the block; the tests' folders do not have it, so that it is removed after that."""
    found = float(shared_memory(folder).read_text(encoding="utf-8"))
    if found != 1.0:
        shared_memory(folder).unlink()
        return found
    return found


def through_mapping(folder: Path, value: float) -> None:
    """Change 2 MiB in place, through memory: the status of the file says nothing."""
    file = folder / "number"
    if not file.exists():
        file.write_bytes(bytes(2 << 20))
    before = file.stat()
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        mapped[:3] = str(value).encode()
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def by_folder(folder: Path) -> float:
    """Open a file relative to an open folder."""
    above = os.open(folder, os.O_RDONLY)
    opened = os.open("number", os.O_RDONLY, dir_fd=above)
    try:
        return float(os.pread(opened, 100, 0))
    finally:
        os.close(opened)
        os.close(above)


def by_c_library(folder: Path) -> float:
    """Open a file in C, and leave it open."""
    library, into = ctypes.CDLL(None), ctypes.create_string_buffer(100)
    library.read(library.open(bytes(folder / "number"), os.O_RDONLY), into, 100)
    return float(into.value)


def appending(folder: Path) -> float:
    """Open a file to append to it, and read it from its start."""
    with (folder / "number").open("a+", encoding="utf-8") as file:
        file.seek(0)
        return float(file.read())


def own_cache(folder: Path) -> float:
    """Make a file of statistics where there is none, and use it from then on."""
    statistics = folder / "made" / "statistics"
    if not statistics.exists():
        statistics.parent.mkdir(exist_ok=True)
        statistics.write_text("1.0", encoding="utf-8")
    return float(statistics.read_text(encoding="utf-8"))


def change_cache(folder: Path, value: float) -> None:
    """Say something else in the file that a side has made itself."""
    if (folder / "made").exists():
        text("statistics")(folder / "made", value)


def copied(folder: Path) -> float:
    """Copy the file to a temporary folder, and read the copy."""
    with tempfile.TemporaryDirectory() as other:
        shutil.copy(folder / "number", other)
        return text_in(Path(other))


def rows(folder: Path, value: float, *, journal: str = "delete") -> None:
    """Write a database; in a write-ahead log, the file of the database itself stays as it is."""
    database = sqlite3.connect(folder / "database")
    with closing(database), database:
        database.execute(f"pragma journal_mode={journal}")
        database.execute("create table if not exists numbers (number real)")
        database.execute("delete from numbers")
        database.execute("insert into numbers values (?)", [value])
    if journal == "wal":
        # A connection that stays open keeps the log.
        KEPT_OPEN.append(sqlite3.connect(folder / "database"))
        KEPT_OPEN[-1].execute("select * from numbers").fetchall()


KEPT_OPEN: list[sqlite3.Connection] = []


def row(place: str, *, uri: bool = False) -> float:
    """Read a database."""
    with closing(sqlite3.connect(place, uri=uri)) as database:
        return float(database.execute("select number from numbers").fetchone()[0])


def zipped(folder: Path, value: float) -> None:
    """Write an archive."""
    with zipfile.ZipFile(folder / "zip", "w") as archive:
        archive.writestr("number", str(value))


def tarred(folder: Path, value: float) -> None:
    """Write a tape archive."""
    NUMBER(folder, value)
    with tarfile.open(folder / "tar", "w") as archive:
        archive.add(folder / "number", "number")


def from_tar(folder: Path) -> float:
    """Read a tape archive."""
    with tarfile.open(folder / "tar") as archive:
        found = archive.extractfile("number")
        assert found is not None
        return float(found.read())


def shelved(folder: Path, value: float) -> None:
    """Write a shelf of Python's."""
    with shelve.open(str(folder / "shelf")) as shelf:
        shelf["number"] = value


def from_shelf(folder: Path) -> float:
    """Read a shelf of Python's."""
    with shelve.open(str(folder / "shelf"), "r") as shelf:
        return float(shelf["number"])


def from_dbm(folder: Path) -> float:
    """Read a database of keys."""
    with dbm.dumb.open(str(folder / "dbm"), "r") as database:
        return float(database["number"])


def in_dbm(folder: Path, value: float) -> None:
    """Write a database of keys."""
    with dbm.dumb.open(str(folder / "dbm"), "c") as database:
        database["number"] = str(value)


def pretrained(folder: Path, value: float) -> None:
    """Write a folder as Hugging Face's: a configuration, and weights beside it."""
    (folder / "config.json").write_text('{"weights": "model.safetensors"}', encoding="utf-8")
    save_file({"number": torch.tensor(value)}, folder / "model.safetensors")


def from_pretrained(folder: Path) -> float:
    """Read the weights that the configuration names."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return load_file(folder / config["weights"])["number"].item()


def config(folder: Path, value: float) -> None:
    """Write an ini file."""
    text("ini")(folder, value)
    (folder / "ini").write_text(f"[optimizer]\nnumber = {value}\n", encoding="utf-8")


def from_config(folder: Path) -> float:
    """Read an ini file."""
    parser = configparser.ConfigParser()
    parser.read(folder / "ini", encoding="utf-8")
    return parser.getfloat("optimizer", "number")


def from_environment_file(folder: Path) -> float:
    """Set the variables that a file names, and read one."""
    for line in (folder / ".env").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition("=")
        os.environ[name] = value
    return float(os.environ.pop("NUMBER"))


def from_lines(folder: Path) -> float:
    """Read lines of files one after the other."""
    with fileinput.input([folder / "number"], encoding="utf-8") as lines:
        return float(next(iter(lines)))


def from_cached_lines(folder: Path) -> float:
    """Read a line by the module that remembers them."""
    return float(linecache.getline(str(folder / "number"), 1))


def from_csv(folder: Path) -> float:
    """Read a table."""
    with (folder / "csv").open(encoding="utf-8", newline="") as lines:
        return float(next(iter(csv.DictReader(lines)))["number"])


def by_content(folder: Path) -> float:
    """Choose a number by the digest of a file."""
    digest = hashlib.sha256((folder / "number").read_bytes()).hexdigest()
    return 1.0 if digest == hashlib.sha256(b"1.0").hexdigest() else 2.0


def files(folder: Path, value: float) -> None:
    """Have as many files in a folder."""
    (folder / "many").mkdir(exist_ok=True)
    for number in range(int(value)):
        (folder / "many" / str(number)).touch()


def extended(folder: Path, value: float) -> None:
    """Write an extended attribute of a file."""
    (folder / "number").touch()
    os.setxattr(folder / "number", "user.number", str(value).encode())


SOURCES = {
    "text": Source(NUMBER, text_in),
    "times and size as before": Source(same_status, text_in),
    "another file by its name": Source(replaced, text_in),
    "a file without a name": Source(without_name, text_in),
    "a link to a file": Source(link_to_file, lambda folder: text_in(folder, "link")),
    "a link to a folder": Source(link_to_folder, lambda folder: text_in(folder / "link")),
    "above a link": Source(link_to_folder, lambda folder: text_in(folder, "link/../number")),
    "another name of a file": Source(hard_link, text_in),
    "shared memory": Source(in_memory, out_of_memory),
    "mapped by the writer": Source(
        through_mapping, lambda folder: float((folder / "number").read_bytes()[:3])
    ),
    "dir_fd": Source(NUMBER, by_folder),
    "C library": Source(NUMBER, by_c_library),
    "append": Source(NUMBER, appending),
    "own cache": Source(change_cache, own_cache),
    "copy": Source(NUMBER, copied),
    "a library by its name": Source(text("x.so.1"), lambda folder: text_in(folder, "x.so.1")),
    "np.memmap": Source(NUMBER, lambda f: float(bytes(np.memmap(f / "number", np.uint8, "r")))),
    "np.fromfile": Source(NUMBER, lambda f: float(np.fromfile(f / "number", np.uint8).tobytes())),
    "np.loadtxt": Source(NUMBER, lambda f: float(np.loadtxt(f / "number"))),
    "np.load": Source(
        lambda f, value: np.save(f / "array.npy", value), lambda f: float(np.load(f / "array.npy"))
    ),
    "np.load, mapped": Source(
        lambda f, value: np.save(f / "array.npy", [value]),
        lambda f: float(np.load(f / "array.npy", mmap_mode="r")[0]),
    ),
    "np.savez": Source(
        lambda f, value: np.savez(f / "arrays.npz", number=value),
        lambda f: float(np.load(f / "arrays.npz")["number"]),
    ),
    "torch.load": Source(
        lambda f, value: torch.save(torch.tensor(value), f / "tensor.pt"),
        lambda f: torch.load(f / "tensor.pt").item(),
    ),
    "torch.load, mapped": Source(
        lambda f, value: torch.save(torch.tensor(value), f / "tensor.pt"),
        lambda f: torch.load(f / "tensor.pt", mmap=True).item(),
    ),
    "torch.from_file": Source(
        NUMBER,
        lambda f: float(
            bytes(torch.from_file(str(f / "number"), size=3, dtype=torch.uint8).tolist())
        ),
    ),
    "safetensors": Source(
        lambda f, value: save_file({"x": torch.tensor(value)}, f / "x.safetensors"),
        lambda f: load_file(f / "x.safetensors")["x"].item(),
    ),
    "a pretrained folder": Source(pretrained, from_pretrained),
    "pickle": Source(
        lambda f, value: (f / "pickle").write_bytes(pickle.dumps(value)),
        lambda f: float(pickle.loads((f / "pickle").read_bytes())),
    ),
    "struct": Source(
        lambda f, value: (f / "bytes").write_bytes(struct.pack("d", value)),
        lambda f: float(struct.unpack("d", (f / "bytes").read_bytes())[0]),
    ),
    "json": Source(text("json"), lambda f: float(json.loads((f / "json").read_bytes()))),
    "yaml": Source(text("yaml"), lambda f: float(yaml.safe_load((f / "yaml").read_bytes()))),
    "xml": Source(
        lambda f, value: (f / "xml").write_text(f"<x>{value}</x>", encoding="utf-8"),
        lambda f: float(ET.parse(f / "xml").getroot().text or ""),
    ),
    "ini": Source(config, from_config),
    "csv": Source(
        lambda f, value: (f / "csv").write_text(f"number\n{value}\n", encoding="utf-8"), from_csv
    ),
    ".env": Source(
        lambda f, value: (f / ".env").write_text(f"NUMBER={value}", encoding="utf-8"),
        from_environment_file,
    ),
    "sqlite": Source(rows, lambda f: row(str(f / "database"))),
    "sqlite by URI": Source(rows, lambda f: row(f"file:{f}/database?mode=ro", uri=True)),
    "sqlite with a write-ahead log": Source(
        lambda f, value: rows(f, value, journal="wal"), lambda f: row(str(f / "database"))
    ),
    "dbm": Source(in_dbm, from_dbm),
    "shelve": Source(shelved, from_shelf),
    "zip": Source(zipped, lambda f: float(zipfile.ZipFile(f / "zip").read("number"))),
    "tar": Source(tarred, from_tar),
    "gzip": Source(
        lambda f, value: (f / "gz").write_bytes(gzip.compress(str(value).encode())),
        lambda f: float(gzip.decompress((f / "gz").read_bytes())),
    ),
    "bz2": Source(
        lambda f, value: (f / "bz2").write_bytes(bz2.compress(str(value).encode())),
        lambda f: float(bz2.decompress((f / "bz2").read_bytes())),
    ),
    "lzma": Source(
        lambda f, value: (f / "xz").write_bytes(lzma.compress(str(value).encode())),
        lambda f: float(lzma.decompress((f / "xz").read_bytes())),
    ),
    "fileinput": Source(NUMBER, from_lines),
    "linecache": Source(NUMBER, from_cached_lines),
    "digest of a file": Source(NUMBER, by_content),
    "os.listdir": Source(files, lambda f: float(len(os.listdir(f / "many")))),
    "os.scandir": Source(files, lambda f: float(len([*os.scandir(f / "many")]))),
    "glob": Source(files, lambda f: float(len([*f.glob("many/*")]))),
    "os.path.exists": Source(files, lambda f: 1.0 + (f / "many" / "1").exists()),
    "size": Source(
        lambda f, value: (f / "size").write_bytes(bytes(int(value))),
        lambda f: float((f / "size").stat().st_size),
    ),
    "mode": Source(
        lambda f, value: ((f / "mode").touch(), (f / "mode").chmod(0o600 + int(value))),
        lambda f: float((f / "mode").stat().st_mode & 0o7),
    ),
    "time": Source(
        lambda f, value: ((f / "time").touch(), os.utime(f / "time", (value, value))),
        lambda f: (f / "time").stat().st_mtime,
    ),
    "target of a link": Source(link_to_file, lambda f: float(os.readlink(f / "link"))),
}
