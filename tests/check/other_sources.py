"""Sources that are modules, what modules remember, processes, pipes, servers and variables."""

from __future__ import annotations

import ctypes
import functools
import http.server
import importlib
import importlib.metadata
import importlib.resources
import importlib.util
import json
import os
import pkgutil
import py_compile
import runpy
import shutil
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import urllib.request
import zipfile
import zoneinfo
from collections.abc import Callable
from pathlib import Path

from source import Source, text, text_in

NUMBER = text("number")

PROGRAM = "import pathlib, sys; print(pathlib.Path(sys.argv[1]).read_text())"


def module(name: str) -> Callable[[Path, float], object]:
    """Return a function that writes a module with the number."""

    def write(folder: Path, value: float) -> None:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"NUMBER = {value}", encoding="utf-8")

    return write


def imported(name: str, *entries: str) -> Callable[[Path], float]:
    """Return a function that imports a module from these entries of `sys.path` in the folder."""

    def read(folder: Path) -> float:
        before = [*sys.path]
        sys.path[:0] = [str(folder / entry) for entry in entries or (".",)]
        try:
            return float(importlib.import_module(name).NUMBER)
        finally:
            sys.path[:] = before

    return read


def same_times(folder: Path, value: float) -> None:
    """Write a module anew with the size and the time of the one whose bytecode is there."""
    file = folder / "module_of_old_time.py"
    module(file.name)(folder, value)
    os.utime(file, (1_000_000_000, 1_000_000_000))


def earlier(folder: Path, value: float) -> None:
    """Have a module of the same name appear earlier on `sys.path`."""
    (folder / "first").mkdir(exist_ok=True)
    module(f"{'second' if value == 1 else 'first'}/module_on_path.py")(folder, value)


def portion(folder: Path, value: float) -> None:
    """Have another portion of a namespace package appear, which comes first."""
    (folder / "first").mkdir(exist_ok=True)
    module(f"{'second' if value == 1 else 'first'}/spaced_package/inner.py")(folder, value)


def archived(folder: Path, value: float) -> None:
    """Write a module into an archive."""
    with zipfile.ZipFile(folder / "modules.zip", "w") as archive:
        archive.writestr("module_in_zip.py", f"NUMBER = {value}")


def without_source(folder: Path, value: float) -> None:
    """Write the bytecode of a module, and no source."""
    module("made.py")(folder, value)
    py_compile.compile(str(folder / "made.py"), str(folder / "module_of_bytecode.pyc"))


def of_data(folder: Path, value: float) -> None:
    """Write what a module reads when it is imported."""
    NUMBER(folder, value)
    (folder / "module_of_data.py").write_text(
        "import pathlib\n"
        "NUMBER = float(pathlib.Path(__file__).with_name('number').read_text(encoding='utf-8'))\n",
        encoding="utf-8",
    )


def package(folder: Path, value: float) -> None:
    """Write a package with data beside its code."""
    (folder / "package_of_data").mkdir(exist_ok=True)
    (folder / "package_of_data" / "__init__.py").write_text("NUMBER = 0", encoding="utf-8")
    NUMBER(folder / "package_of_data", value)


def resource(folder: Path) -> float:
    """Read the data of a package by name."""
    imported("package_of_data")(folder)
    place = importlib.resources.files("package_of_data") / "number"
    return float(place.read_text(encoding="utf-8"))


def old_resource(folder: Path) -> float:
    """Read the data of a package by the older function."""
    imported("package_of_data")(folder)
    return float(pkgutil.get_data("package_of_data", "number") or b"")


def installed(folder: Path, value: float) -> None:
    """Write the record of a distribution with an entry point that names a number."""
    record = folder / "numbers-1.dist-info"
    record.mkdir(exist_ok=True)
    (record / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: numbers\nVersion: 1\n", encoding="utf-8"
    )
    (record / "entry_points.txt").write_text(
        f"[numbers]\nnumber = {'one' if value == 1 else 'two'}\n", encoding="utf-8"
    )


def entry_point(folder: Path) -> float:
    """Read the entry points of the distributions in the folder."""
    (found,) = importlib.metadata.distributions(path=[str(folder)])
    (point,) = found.entry_points
    return {"one": 1.0, "two": 2.0}[point.value]


def by_spec(folder: Path) -> float:
    """Execute a file as a module that nobody can import by name."""
    spec = importlib.util.spec_from_file_location("nameless", folder / "by_spec.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return float(made.NUMBER)


def executed(folder: Path) -> float:
    """Execute the text of a file."""
    names: dict[str, float] = {}
    exec((folder / "executed.py").read_text(encoding="utf-8"), names)
    return names["NUMBER"]


def compiled(folder: Path, value: float) -> None:
    """Compile a library that returns the number."""
    (folder / "number.c").write_text(f"double number(void) {{ return {value}; }}", encoding="utf-8")
    out = folder / "new.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", out, folder / "number.c"], check=True)
    os.replace(out, folder / "libnumber.so")


def from_library(folder: Path) -> float:
    """Call a library by its path."""
    library = ctypes.CDLL(str(folder / "libnumber.so"))
    library.number.restype = ctypes.c_double
    return float(library.number())


@functools.cache
def remembered(folder: Path) -> float:
    """Read a file once in a process."""
    return text_in(folder)


class Remembering:
    """A class that reads a file once in a process."""

    number = 0.0

    @classmethod
    def read(cls, folder: Path) -> float:
        """Return what was read first."""
        cls.number = cls.number or text_in(folder)
        return cls.number


_opened: dict[Path, object] = {}


def kept_open(folder: Path) -> float:
    """Open a file once in a process, and read all of it then."""
    if folder not in _opened:
        _opened[folder] = (folder / "number").open(encoding="utf-8").read()
    return float(str(_opened[folder]))


def by_program(*words: str) -> Callable[[Path], float]:
    """Return a function that reads what a program prints of the file."""
    return lambda folder: float(subprocess.check_output([*words, str(folder / "number")]))


def by_shell(folder: Path) -> float:
    """Read what a shell prints."""
    return float(subprocess.getoutput(f"cat '{folder}/number'"))


def by_stream(folder: Path) -> float:
    """Read what a shell writes into a pipe."""
    with os.popen(f"cat '{folder}/number'") as stream:
        return float(stream.read())


def by_system(folder: Path) -> float:
    """Have a shell that the C library starts copy the file."""
    ctypes.CDLL(None).system(f"cat '{folder}/number' > '{folder}/copy'".encode())
    return text_in(folder, "copy")


def by_fork(folder: Path) -> float:
    """Have a fork read the file."""
    ours, theirs = os.pipe()
    if not (child := os.fork()):
        os.write(theirs, (folder / "number").read_bytes())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(theirs)
    with open(ours, "rb") as pipe:
        return float(pipe.read())


def piped(folder: Path, value: float) -> None:
    """Have a thread write the number into a pipe with a name, whenever somebody reads it."""
    pipe = folder / "pipe"
    if pipe.exists():
        pipe.unlink()
    os.mkfifo(pipe)

    def feed() -> None:
        for _ in range(READS):
            with pipe.open("w") as stream:
                stream.write(str(value))

    threading.Thread(target=feed, daemon=True).start()


def from_pipe(folder: Path) -> float:
    """Read one number: the thread may have written the next one before the end is seen."""
    with (folder / "pipe").open("rb", buffering=0) as stream:
        return float(stream.read(3) or b"")


READS = 20
"""More reads of a source than a check makes."""


class Answer(socketserver.BaseRequestHandler):
    """Sends the number of its server."""

    def handle(self) -> None:
        """Send it."""
        self.request.sendall(str(self.server.number).encode())  # type: ignore[attr-defined]


class Page(http.server.BaseHTTPRequestHandler):
    """Serves the number of its server."""

    def do_GET(self) -> None:
        """Send it."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(self.server.number).encode())  # type: ignore[attr-defined]

    def log_message(self, *words: object) -> None:
        """Be silent."""


def served(make: Callable[[Path], socketserver.BaseServer]) -> Callable[[Path, float], None]:
    """Return a function that has a server say the number; the server is made once."""
    servers: dict[Path, socketserver.BaseServer] = {}

    def write(folder: Path, value: float) -> None:
        if folder not in servers:
            servers[folder] = make(folder)
            threading.Thread(target=servers[folder].serve_forever, daemon=True).start()
            address = json.dumps(servers[folder].server_address)
            (folder / "address").write_text(address, encoding="utf-8")
        servers[folder].number = value  # type: ignore[attr-defined]

    return write


def tcp(folder: Path) -> socketserver.BaseServer:
    """Return a server of this machine."""
    return socketserver.TCPServer(("127.0.0.1", 0), Answer)


def unix(folder: Path) -> socketserver.BaseServer:
    """Return a server with a name in the file system, which has to be short."""
    link = Path("/tmp") / f"numbers-{os.getpid()}-{abs(hash(folder))}"
    return socketserver.UnixStreamServer(str(link), Answer)


def web(folder: Path) -> socketserver.BaseServer:
    """Return a web server of this machine."""
    return http.server.HTTPServer(("127.0.0.1", 0), Page)


def address_in(folder: Path) -> object:
    """Return the address of the folder's server."""
    found = json.loads((folder / "address").read_text(encoding="utf-8"))
    return tuple(found) if isinstance(found, list) else found


def from_server(family: int) -> Callable[[Path], float]:
    """Return a function that asks a server."""

    def read(folder: Path) -> float:
        with socket.socket(family) as connection:
            connection.connect(address_in(folder))  # type: ignore[arg-type]
            return float(connection.recv(100))

    return read


def from_web(folder: Path) -> float:
    """Ask a web server."""
    host, port = address_in(folder)  # type: ignore[misc]
    with urllib.request.urlopen(f"http://{host}:{port}/") as answer:
        return float(answer.read())


def zone(folder: Path, value: float) -> None:
    """Write the file of a time zone, whose offset is the number in hours."""
    counts = struct.pack(">6l", 0, 0, 0, 0, 1, 4)
    kind = struct.pack(">lbb", int(3600 * value), 0, 0)
    (folder / "zone").write_bytes(b"TZif" + bytes(16) + counts + kind + b"ABC\0")


def from_zone(folder: Path) -> float:
    """Read the file of a time zone."""
    from datetime import datetime

    with (folder / "zone").open("rb") as file:
        offset = datetime(2026, 1, 1, tzinfo=zoneinfo.ZoneInfo.from_file(file)).utcoffset()
    assert offset is not None
    return offset.total_seconds() / 3600


def variable(name: str) -> Callable[[Path, float], None]:
    """Return a function that sets an environment variable of the test's process."""

    def write(folder: Path, value: float) -> None:
        os.environ[name] = str(value)

    return write


def moved(folder: Path, value: float) -> None:
    """Change into another directory, in which a relative name is another file."""
    place = folder / str(value)
    place.mkdir()
    NUMBER(place, value)
    os.chdir(place)


def beside_link(folder: Path, value: float) -> None:
    """Exchange a whole folder."""
    shutil.rmtree(folder / "data", ignore_errors=True)
    (folder / "data").mkdir()
    NUMBER(folder / "data", value)


SOURCES = {
    "module": Source(module("module_alone.py"), imported("module_alone")),
    "module with the time of its bytecode": Source(same_times, imported("module_of_old_time")),
    "module earlier on sys.path": Source(earlier, imported("module_on_path", "first", "second")),
    "namespace package": Source(portion, imported("spaced_package.inner", "first", "second")),
    "submodule": Source(module("regular_package/inner.py"), imported("regular_package.inner")),
    "module in an archive": Source(archived, imported("module_in_zip", "modules.zip")),
    "module without a source": Source(without_source, imported("module_of_bytecode")),
    "module that reads data": Source(of_data, imported("module_of_data")),
    "importlib.resources": Source(package, resource),
    "pkgutil.get_data": Source(package, old_resource),
    "entry point": Source(installed, entry_point),
    "runpy": Source(
        module("run.py"), lambda folder: runpy.run_path(str(folder / "run.py"))["NUMBER"]
    ),
    "module by its file": Source(module("by_spec.py"), by_spec),
    "exec": Source(module("executed.py"), executed),
    "compiled library": Source(compiled, from_library),
    "functools.cache": Source(NUMBER, remembered),
    "attribute of a class": Source(NUMBER, Remembering.read),
    "read once": Source(NUMBER, kept_open),
    "cat": Source(NUMBER, by_program("cat")),
    "another interpreter": Source(NUMBER, by_program(sys.executable, "-c", PROGRAM)),
    "shell": Source(NUMBER, by_shell),
    "os.popen": Source(NUMBER, by_stream),
    "system": Source(NUMBER, by_system),
    "fork": Source(NUMBER, by_fork),
    "pipe with a name": Source(piped, from_pipe),
    "TCP": Source(served(tcp), from_server(socket.AF_INET)),
    "Unix socket": Source(served(unix), from_server(socket.AF_UNIX)),
    "HTTP": Source(served(web), from_web),
    "URL of a file": Source(
        NUMBER, lambda folder: float(urllib.request.urlopen(f"file://{folder}/number").read())
    ),
    "time zone": Source(zone, from_zone),
    "environment variable": Source(
        variable("NUMBER_OF_A_TEST"), lambda folder: float(os.environ["NUMBER_OF_A_TEST"])
    ),
    "locale": Source(
        lambda folder, value: os.environ.update(LC_ALL=["C", "C.UTF-8"][int(value) - 1]),
        lambda folder: {"C": 1.0, "C.UTF-8": 2.0}[os.environ["LC_ALL"]],
    ),
    "current directory": Source(moved, lambda folder: text_in(Path())),
    "by the process": Source(moved, lambda folder: text_in(Path("/proc/self/cwd"))),
    "a folder in the place of another": Source(beside_link, lambda f: text_in(f / "data")),
}
