"""Operations: the log of all tensor operations of a part of a run, at rest.

Values are told apart by their digest and by the memory that they lie in. What many operations have
in common (names, places, values) stands in the file once, so that an operation takes little of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from pytest_precision.trace.code_lines import CodeLine, Setting, Site, UserCall
from pytest_precision.trace.files import OWN_FILES, TraceFiles, write_whole
from pytest_precision.trace.sealed import log_of


class Value(NamedTuple):
    """What a tensor held at one moment.

    Attributes:
        digest: of its bytes in row-major order; of a tensor whose elements are all the same it is
            `=`, the hexadecimal bytes of one of them, `x` and their number.
        storage: number of the memory that it lies in; -1 for the state of a generator.
        dtype: its dtype, without `torch.`.
        shape: its shape.
        pieces: digests of the parts of it that another layout may hold by themselves.
        span: the first byte in the memory that it lies in, and the one after its last.
    """

    digest: str
    storage: int
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[str, ...] = ()
    span: tuple[int, int] = (0, 0)

    @property
    def uniform(self) -> bool:
        """Return whether all elements are the same."""
        return self.digest.startswith("=")

    @property
    def element(self) -> bytes:
        """Return the bytes of each element of a uniform value."""
        return bytes.fromhex(self.digest[1:].partition("x")[0]) if self.uniform else b""

    @property
    def elements(self) -> int:
        """Return the number of elements."""
        number = 1
        for size in self.shape:
            number *= size
        return number


def is_zero(digest: str) -> bool:
    """Return whether a digest is that of zeros."""
    return digest.startswith("=") and not digest[1:].partition("x")[0].strip("0")


class Constant(NamedTuple):
    """An argument that is no tensor: its name, empty where it has only a place, and its text."""

    name: str
    text: str


LoggedArgument: TypeAlias = "Value | Constant | tuple[Value, ...]"
"""A tensor, a constant, or a list of tensors."""

FOREACH = "_foreach_"
"""How names of operators begin that compute with lists of tensors."""

REGION = "compiled.region"
"""Name that a region of `torch.compile` has, which is logged as one operation."""

GRAPH = "cuda.graph"
"""Name that the replay of a CUDA graph has: none of its operations is called."""

OF_TORCH = frozenset({"aten", "prims", "c10d", "_c10d_functional", "_c10d_functional_autograd"})
"""Namespaces of torch's own operators."""

SYNONYMS = {"linalg_vector_norm": "norm"}
"""Base names of operators that a foreach has under another name."""


class LoggedOperation(NamedTuple):
    """One call of one operator.

    Attributes:
        name: as `aten.mul.Tensor`.
        arguments: tensors, lists of them and constants, in the order of the call.
        results: what it returned or wrote, in the order of its result.
        written: the positions in `arguments` that it overwrote without reading them.
        module: path of the module in whose forward it was called, or whose backward it is.
        backward: whether it is part of a backward.
        line: where it was called; of a backward, where its forward was.
        sketches: of each result, see `Wanted.sketches`.
        sites: the lines that were running which are not the user's, from the innermost.
    """

    name: str
    arguments: tuple[LoggedArgument, ...]
    results: tuple[Value, ...]
    written: tuple[int, ...]
    module: str
    backward: bool
    line: CodeLine | None
    sketches: tuple[tuple[float, ...], ...] = ()
    sites: tuple[Site, ...] = ()

    @property
    def is_foreach(self) -> bool:
        """Return whether it computes with lists of tensors, element by element."""
        return FOREACH in self.name

    @property
    def is_region(self) -> bool:
        """Return whether it stands for all operations of a compiled region."""
        return self.name == REGION

    @property
    def is_custom(self) -> bool:
        """Return whether it is an operator of somebody's own, with whatever that computes."""
        return self.name not in (REGION, GRAPH) and self.name.split(".")[0] not in OF_TORCH

    @property
    def is_collective(self) -> bool:
        """Return whether it exchanges values between ranks."""
        return self.name.startswith(("c10d.", "_c10d_functional."))

    @property
    def base(self) -> str:
        """Return the name without namespace, overload, foreach and the mark of an in-place form."""
        name = self.name.split(".")[1].removeprefix(FOREACH).rstrip("_")
        return SYNONYMS.get(name, name)

    @property
    def read(self) -> tuple[Value, ...]:
        """Return the values that it depends on."""
        found: list[Value] = []
        for place, argument in enumerate(self.arguments):
            if place in self.written or isinstance(argument, Constant):
                continue
            found += (argument,) if isinstance(argument, Value) else argument
        return tuple(found)


class Holding(NamedTuple):
    """A tensor that a run held at one moment, by kind and name: `master of head.weight`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} of {self.name}"


@dataclass
class OperationLog:
    """What one rank logged.

    Attributes:
        operations: in the order of their calls.
        given: what there was at the start.
        left: what there was at the end.
        settings: in order.
        restores: of a script that begins with a load, what has brought state back: `what` names
            the function of torch.
        entries: in the order of their calls.
        cut: the limit after which operations were left out; 0 where none were.
    """

    operations: list[LoggedOperation] = field(default_factory=list)
    given: dict[Holding, Value] = field(default_factory=dict)
    left: dict[Holding, Value] = field(default_factory=dict)
    settings: list[Setting] = field(default_factory=list)
    restores: list[Setting] = field(default_factory=list)
    entries: list[UserCall] = field(default_factory=list)
    cut: int = 0

    def write(self, folder: Path, rank: int) -> None:
        """Write it next to a trace."""
        values, lines, names, modules, sites, stacks = (_Interned() for _ in range(6))

        def argument(given: LoggedArgument) -> Any:
            if isinstance(given, Value):
                return values.number(given)
            return given if isinstance(given, Constant) else [values.number(one) for one in given]

        rows = [
            [
                names.number(one.name),
                [argument(given) for given in one.arguments],
                [values.number(result) for result in one.results],
                one.written,
                modules.number(one.module),
                int(one.backward),
                lines.number(one.line),
                one.sketches,
                stacks.number(one.sites),
            ]
            for one in self.operations
        ]
        content = {
            "operations": rows,
            "given": [(*held, values.number(value)) for held, value in self.given.items()],
            "left": [(*held, values.number(value)) for held, value in self.left.items()],
            "settings": _settings(self.settings, lines, stacks),
            "restores": _settings(self.restores, lines, stacks),
            "entries": [
                [sites.number(one.site), lines.number(one.line), one.operations, one.settings]
                for one in self.entries
            ],
            "stacks": [[sites.number(site) for site in stack] for stack in stacks.all],
            "sites": sites.all,
            "cut": self.cut,
            "values": values.all,
            "lines": lines.all,
            "names": names.all,
            "modules": modules.all,
        }
        write_whole(path_of(folder, rank), content, writer=rank)

    @classmethod
    def read(cls, folder: Path, rank: int, files: TraceFiles = OWN_FILES) -> OperationLog:
        """Read what a rank wrote next to a trace."""
        found = files.data(path_of(folder, rank))
        values = [Value(*row[:3], *map(tuple, row[3:])) for row in found["values"]]
        lines = [None if row is None else CodeLine(*row) for row in found["lines"]]

        sites = [Site(*row) for row in found["sites"]]
        stacks = [tuple(sites[one] for one in stack) for stack in found["stacks"]]

        return cls(
            [
                LoggedOperation(
                    found["names"][name],
                    tuple(_argument(one, values) for one in arguments),
                    tuple(values[one] for one in results),
                    tuple(written),
                    found["modules"][module],
                    bool(backward),
                    lines[line],
                    tuple(map(tuple, sketches)),
                    stacks[stack],
                )
                for (
                    *(name, arguments, results, written, module, backward, line),
                    sketches,
                    stack,
                ) in found["operations"]
            ],
            {Holding(kind, name): values[number] for kind, name, number in found["given"]},
            {Holding(kind, name): values[number] for kind, name, number in found["left"]},
            [_setting(row, lines, stacks) for row in found["settings"]],
            [_setting(row, lines, stacks) for row in found["restores"]],
            [
                UserCall(sites[site], lines[line], tuple(operations), tuple(settings))
                for site, line, operations, settings in found["entries"]
            ],
            found["cut"],
        )


def path_of(folder: Path, rank: int) -> Path:
    """Return the file to which a rank writes its log."""
    return folder / log_of(rank)


def _settings(found: list[Setting], lines: _Interned, stacks: _Interned) -> list[Any]:
    return [[*one[:4], lines.number(one.line), stacks.number(one.sites)] for one in found]


def _setting(row: Any, lines: list[CodeLine | None], stacks: list[tuple[Site, ...]]) -> Setting:
    before, what, owner, value, line, stack = row
    return Setting(before, what, owner, value, lines[line], stacks[stack])


def _argument(given: Any, values: list[Value]) -> LoggedArgument:
    if isinstance(given, int):
        return values[given]
    if isinstance(given[0], str):
        return Constant(*given)
    return tuple(values[one] for one in given)


class _Interned:
    """Numbers things in the order in which they are first met."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def number(self, thing: Any) -> int:
        return self._numbers.setdefault(thing, len(self._numbers))

    @property
    def all(self) -> list[Any]:
        return [*self._numbers]
