"""The operation, and the line of the user's code, that made the first wrong value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from pytest_precision.errors import expect_one_of
from pytest_precision.parity.plain_data import as_plain, plain_element

CULPRIT_KINDS = (
    "constant",
    "missing",
    "extra",
    "inputs",
    "order",
    "cast",
    "collective",
    "data",
    "grown",
    "setting",
    "unknown",
)
"""What kind of error an operation made; `docs/reference/report.md` says what each one means."""

BOTH_SIDES = ("candidate", "reference")


class SourceLine(NamedTuple):
    """One line of source code: its number in the file, from 1, and its text."""

    number: int
    text: str


class Following(NamedTuple):
    """A later operation at fault, which made a wrong value independently of the first one.

    Attributes:
        operation: its name.
        file: where it was called; None where no line is known.
        line: its number in that file; None where no line is known.
        text: what it did and where, in one line without a full stop.
    """

    operation: str
    file: str | None
    line: int | None
    text: str


class ModuleErrors(NamedTuple):
    """Relative L2 errors of a module's last result in forward and of its last one in backward."""

    module: str
    forward: float | None
    backward: float | None


class CalledAt(NamedTuple):
    """An operation of the reference's run, with the source line that called it.

    Attributes:
        operation: its name.
        function: as of a culprit.
        file: as of a culprit.
        line: as of a culprit.
        source: the line with those around it; empty where the source cannot be read, or has changed
            since it ran.
    """

    operation: str
    function: str | None
    file: str | None
    line: int | None
    source: tuple[SourceLine, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """The operation that made the first wrong value, as plain data: `culprit` in report.json.

    Attributes:
        text: the second line of a failure: what the operation did and where, such as `first wrong
            value: aten.mul.Tensor in clip_grad_norm_, called at train.py:69: the reference
            multiplied by 0.3 here, the candidate by 100.0`.
        kind: one of `CULPRIT_KINDS`.
        operation: name of the operation, such as `aten.mul.Tensor`; for a setting, what was set.
        function: the function of a library that the line calls and that ran the operation, or the
            one that the line stands in; None where it is unknown.
        file: the file of the line: relative to the root of the project, or, if `outside`, to the
            folder of its package; None where no line is known.
        line: from 1.
        outside: whether the file is no file of the project: installed code, or unknown here.
        module: path of the module in which the operation ran, such as `blocks.0.attn`; None outside
            of modules.
        rank: the candidate's rank that made the value; None where every rank did.
        constants: for `candidate` and `reference`, the arguments that are no tensors, by name, of
            those that are not the same on both sides; None where none is.
        reference: what the reference did on the same inputs; None where it did nothing like it.
        source: the line with those around it, in order; empty where the source cannot be read.
        following: the next operations that made wrong values on their own, in order.
        modules: the errors of modules in the order of the model; empty where values were followed.
    """

    text: str
    kind: str
    operation: str
    function: str | None = None
    file: str | None = None
    line: int | None = None
    outside: bool = False
    module: str | None = None
    rank: int | None = None
    constants: Mapping[str, Mapping[str, Any]] | None = None
    reference: CalledAt | None = None
    source: tuple[SourceLine, ...] = ()
    following: tuple[Following, ...] = ()
    modules: tuple[ModuleErrors, ...] = ()

    def __post_init__(self) -> None:
        expect_one_of("kind", self.kind, CULPRIT_KINDS)

    @property
    def where(self) -> str:
        """Return the place in the source as `file:line`, without the number where it is unknown."""
        return source_place(self.file, self.line)

    @property
    def quoted(self) -> tuple[str, ...]:
        """Return its line of code, and the reference's where that is another; nothing if unread."""
        ours = _text_of(self.line, self.source)
        theirs = (
            None if self.reference is None else _text_of(self.reference.line, self.reference.source)
        )
        if self.reference is None or theirs in (None, ours):
            return () if ours is None else (f"  code       {ours}",)
        sides = zip(BOTH_SIDES, (ours, theirs), strict=True)
        return tuple(f"  {side}  {text}" for side, text in sides if text is not None)

    def as_dict(self) -> dict[str, Any]:
        """Return the culprit as a dict of builtin types for report.json, without empty fields."""
        every = {field.name: getattr(self, field.name) for field in fields(self)}
        data = {name: value for name, value in every.items() if value not in (None, (), {})}
        for name in ("source", "following", "modules"):
            if name in data:
                data[name] = [row._asdict() for row in getattr(self, name)]
        if self.reference is not None:
            data["reference"] = self.reference._asdict()
            source = [row._asdict() for row in data["reference"].pop("source")]
            data["reference"] |= {"source": source} if source else {}
        if self.constants:
            data["constants"] = {
                side: {name: _constant(value) for name, value in self.constants[side].items()}
                for side in BOTH_SIDES
            }
        return data

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Culprit:
        """Rebuild a culprit from the dict of `as_dict`; keys of later releases are ignored."""
        arguments = {field.name: data[field.name] for field in fields(cls) if field.name in data}
        rows = {
            "source": _rows(SourceLine, arguments.get("source", ())),
            "following": _rows(Following, arguments.get("following", ())),
            "modules": tuple(
                ModuleErrors(row["module"], _number(row["forward"]), _number(row["backward"]))
                for row in arguments.get("modules", ())
            ),
        }
        called = arguments.get("reference")
        return cls(**arguments | rows | {"reference": _called_at(called) if called else None})


def source_place(file: str | None, line: int | None) -> str:
    """Return a place in the source as `file:line`, without the number where it is unknown."""
    return ":".join(str(part) for part in (file, line) if part is not None)


def _text_of(line: int | None, source: Iterable[SourceLine]) -> str | None:
    """Return the text of a line of code without its indent; None where it cannot be read."""
    return next((row.text.strip() for row in source if row.number == line), None)


def _rows(form: Any, rows: Iterable[Mapping[str, Any]]) -> tuple[Any, ...]:
    return tuple(form(*(row[name] for name in form._fields)) for row in rows)


def _called_at(row: Mapping[str, Any]) -> CalledAt:
    source = _rows(SourceLine, row.get("source", ()))
    return CalledAt(row["operation"], row["function"], row["file"], row["line"], source)


def _number(value: Any) -> float | None:
    """Parse a number from JSON, where NaN and infinities are text; None stays None."""
    return None if value is None else float(value)


def _constant(value: Any) -> Any:
    """Return a constant as plain data; what is no list has the text of its whole."""
    return as_plain(value if isinstance(value, list | tuple) else plain_element(value))


class Named(NamedTuple):
    """The operation at fault that a rerun with operation logs found, or why it found none.

    Attributes:
        culprit: what it found, if anything.
        note: in one line, why it names no line; empty if it does.
        nearest: where it names none, operations that may be the cause, in a line each.
    """

    culprit: Culprit | None
    note: str = ""
    nearest: tuple[str, ...] = ()
