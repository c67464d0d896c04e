"""A rank's log of tensor operations, with the source lines that called them.

Values are told apart by their digest and by the memory that they lie in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

GENERATOR = -1
"""The storage that the state of a generator has as a value."""


class CodeLine(NamedTuple):
    """The source line from which an operation was called.

    Attributes:
        file: path of the source file.
        line: its line.
        function: name of the function that the line is in.
        called: name of the package's function that the line calls, in which the operation is; empty
            where the line itself is the operation.
        is_users: whether the file is the user's, rather than one of an installed package.
    """

    file: str
    line: int
    function: str
    called: str
    is_users: bool


class Site(NamedTuple):
    """A source line outside the user's code that was on an operation's call stack.

    Of this package, the file is told from its folder on.
    """

    file: str
    line: int


class UserCall(NamedTuple):
    """A call of a user's function by a package or by the recorder.

    Attributes:
        site: where it was called.
        line: of the function, the one that left others out; its first one if none did.
        operations: how many were logged before it, and when it returned.
        settings: how many had been logged before it, and when it returned.
    """

    site: Site
    line: CodeLine
    operations: tuple[int, int]
    settings: tuple[int, int]


ZEROES, UPDATES = "zero_grad", "step"
"""Methods whose calls are logged among the settings."""

CALLED = "called"
"""The value of such a call."""

DROPPED = "grad"
"""What is set to None where a line drops the gradient of a parameter."""


class Setting(NamedTuple):
    """A logged assignment of a value to an optimizer option or attribute, with its source line.

    So is a call that zeroes gradients or updates weights, and a line that drops a gradient.

    Attributes:
        before: number of operations that had been logged by then.
        option: as `lr`, or the name of an attribute.
        owner: as `group 0`, or the path of a module.
        value: as text.
        line: that set it.
        sites: see `LoggedOperation`.
    """

    before: int
    option: str
    owner: str
    value: str
    line: CodeLine | None
    sites: tuple[Site, ...] = ()

    @property
    def is_call(self) -> bool:
        """Return whether this is a call in place of an assignment of an option."""
        return self.option in (ZEROES, UPDATES) and self.value == repr(CALLED)

    @property
    def drops_gradient(self) -> bool:
        """Return whether a line has set the gradient of a parameter to None."""
        return self.option == DROPPED and self.value == repr(None)

    @property
    def optimizer(self) -> str | None:
        """Return the number of the optimizer whose group has the option; None for anything else.

        The first optimizer has none in words.
        """
        group, _, number = self.owner.partition(" of optimizer ")
        return (number or "0") if group.startswith("group ") else None

    @property
    def name(self) -> str:
        """Return the option and its owner, such as `lr of group 0`."""
        return f"{self.option} of {self.owner}"


class Value(NamedTuple):
    """A digest of a tensor's content at one moment; its dtype, shape, storage and byte range.

    Attributes:
        digest: of its bytes in row-major order; of a tensor whose elements are all the same it is
            `=`, the hexadecimal bytes of one of them, `x` and their number.
        storage: number of the memory that it lies in; `GENERATOR` for the state of a generator.
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
        """Return whether all elements of the tensor have equal bytes."""
        return self.digest.startswith("=")

    @property
    def element(self) -> bytes:
        """Return the bytes of one element if all are equal; else empty bytes."""
        return bytes.fromhex(self.digest[1:].partition("x")[0]) if self.uniform else b""

    @property
    def elements(self) -> int:
        """Return the tensor's number of elements."""
        number = 1
        for size in self.shape:
            number *= size
        return number


def is_zero(digest: str) -> bool:
    """Return whether a digest is that of a tensor whose bytes are all zero."""
    return digest.startswith("=") and not digest[1:].partition("x")[0].strip("0")


class Constant(NamedTuple):
    """A non-tensor argument of an operation, as its name (empty if positional) and text."""

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

DETACH = "aten.detach.default"
"""Name of the operator that takes a value out of the graph of a backward; it makes no value."""

OF_TORCH = frozenset({"aten", "prims", "c10d", "_c10d_functional", "_c10d_functional_autograd"})
"""Namespaces of torch's own operators."""

SYNONYMS = {"linalg_vector_norm": "norm"}
"""Base names of operators that a foreach has under another name."""


class LoggedOperation(NamedTuple):
    """One call of one torch operator, with digests of its inputs and results.

    Attributes:
        name: as `aten.mul.Tensor`.
        arguments: tensors, lists of them and constants, in the order of the call.
        results: what it returned or wrote, in the order of its result.
        written: the positions in `arguments` that it overwrote without reading them.
        module: path of the module in whose forward it was called, or whose backward it is.
        backward: whether it is part of a backward.
        line: where it was called; of a backward, where its forward was.
        sketches: of each result, see `LogRequest.sketches`.
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
        """Return whether the operator works on lists of tensors, as `_foreach_add` does."""
        return FOREACH in self.name

    @property
    def is_in_place(self) -> bool:
        """Return whether the operator's name says that it writes to its first argument."""
        return self.name.partition(".")[2].partition(".")[0].endswith("_")

    @property
    def is_region(self) -> bool:
        """Return whether the logged operation is a whole `torch.compile` region."""
        return self.name == REGION

    @property
    def is_custom(self) -> bool:
        """Return whether the operator is defined outside torch."""
        return self.name not in (REGION, GRAPH) and self.name.split(".")[0] not in OF_TORCH

    @property
    def is_collective(self) -> bool:
        """Return whether the operation is a collective of `torch.distributed`."""
        return self.name.startswith(("c10d.", "_c10d_functional."))

    @property
    def base(self) -> str:
        """Return the operator's bare name: `add` for `aten._foreach_add_.List`."""
        name = self.name.split(".")[1].removeprefix(FOREACH).rstrip("_")
        return SYNONYMS.get(name, name)

    @property
    def read(self) -> tuple[Value, ...]:
        """Return the tensors among the arguments, without those that are only overwritten."""
        values: list[Value] = []
        for place, argument in enumerate(self.arguments):
            if place in self.written or isinstance(argument, Constant):
                continue
            values += (argument,) if isinstance(argument, Value) else argument
        return tuple(values)


class Holding(NamedTuple):
    """The kind and name that identify a tensor of a run, such as `master of head.weight`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} of {self.name}"


class StepEnd(NamedTuple):
    """The number of a train step, and how many operations had been logged when it was over."""

    step: int
    operations: int


@dataclass
class OperationLog:
    """The tensor operations that a rank logged, with the tensors before and after them.

    Attributes:
        operations: in the order of their calls.
        initial_values: what there was at the start.
        left: what there was at the end.
        settings: in order.
        restores: of a script that begins with a load, what has brought state back: `option` names
            the function of torch.
        entries: in the order of their calls.
        cut: the limit after which operations were left out; 0 where none were.
        pieces: see `LogRequest`.
        steps: where the logged train steps end.
        rows: see `LogRequest`.
    """

    operations: list[LoggedOperation] = field(default_factory=list)
    initial_values: dict[Holding, Value] = field(default_factory=dict)
    left: dict[Holding, Value] = field(default_factory=dict)
    settings: list[Setting] = field(default_factory=list)
    restores: list[Setting] = field(default_factory=list)
    entries: list[UserCall] = field(default_factory=list)
    cut: int = 0
    pieces: int = 1
    steps: list[StepEnd] = field(default_factory=list)
    rows: bool = False

    @property
    def first_update(self) -> int:
        """Return how many operations were logged before the first update; all if there is none."""
        updates = (setting.before for setting in self.settings if setting.option == UPDATES)
        return next(updates, len(self.operations))
