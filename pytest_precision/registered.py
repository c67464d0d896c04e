"""What plugins register: judgements of a cell, and reporters of a session, as plain data.

The hooks are in `hookspecs`. Functions and classes are given by `module:name`, or themselves; those
of a name are imported when they are first called, so that a session pays for what it uses only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from pkgutil import resolve_name
from typing import Any, TypeVar

from pytest_precision._usage import usage_error
from pytest_precision.errors import (
    PluginFailed,
    RanksSkipped,
    SideFailed,
    WorldSizeError,
    expected_but_got,
)

Reference = str | Callable[..., Any]
"""A function or class by its import path, `module:name`, or itself."""

_PACKAGE = __name__.partition(".")[0]


def reference_path(reference: Reference) -> str:
    """Return `module:name` of a function or class."""
    if isinstance(reference, str):
        return reference
    return f"{reference.__module__}:{reference.__qualname__}"


def is_of_package(reference: Reference) -> bool:
    """Return whether a function or class is this package's."""
    return reference_path(reference).partition(":")[0].partition(".")[0] == _PACKAGE


def resolved(reference: Reference, owner: object) -> Callable[..., Any]:
    """Return a function, imported if it is given by its name.

    One of another plugin raises PluginFailed, whatever it raises itself but what a further run of
    a side does.

    Args:
        reference: of the function.
        owner: who has registered it, for messages.

    Raises:
        pytest.UsageError: it cannot be imported.
    """
    function = reference
    if isinstance(reference, str):
        try:
            function = resolve_name(reference)
        except (ImportError, AttributeError, ValueError) as error:
            got = f"{reference!r} ({type(error).__name__}: {error})"
            expected = f"{owner} to name what can be imported, as module:name,"
            raise usage_error()(expected_but_got(expected, got)) from error
    assert callable(function)
    return (
        function
        if is_of_package(reference)
        else _blaming(function, reference_path(reference), owner)
    )


def _blaming(function: Callable[..., Any], path: str, owner: object) -> Callable[..., Any]:
    @wraps(function)
    def blaming(*args: Any) -> Any:
        try:
            returned = function(*args)
            # A generator raises when it is read.
            return list(returned) if isinstance(returned, Iterator) else returned
        except OF_RUNS:
            raise
        except Exception as error:
            raise PluginFailed(f"{owner}: {path}", error) from error

    return blaming


OF_RUNS = (SideFailed, RanksSkipped, WorldSizeError)
"""What a further run of a side raises, on which the check itself rules."""


@dataclass(frozen=True)
class GateSpec:
    """A gate, and when it is asked.

    Attributes:
        function: takes the `Case`; returns the `Ruling` that refuses it, or None. Its name is that
            of the gate.
        after: name of the gate that is asked before it; empty for the last place.
        of_recordings: whether it is asked of two recordings of the command `record`, too.
        of_two_sides: whether it asks how two sides are compared, so that it is not asked of a
            layout that is compared with further runs of itself.
    """

    function: Reference
    after: str = ""
    of_recordings: bool = False
    of_two_sides: bool = False

    @property
    def name(self) -> str:
        """Return the name that stands in reports."""
        return reference_path(self.function).rpartition(":")[2]


@dataclass(frozen=True)
class FigureSpec:
    """A figure: what is counted or measured of a cell, whatever its outcome.

    Attributes:
        name: its key in report.json.
        function: takes the `Case`; returns plain data, or None for no figure.
        of_both: whether it tells both sides apart, so that a candidate alone has none.
        of_values: whether a failure has it made once more, of the values around the difference.
    """

    name: str
    function: Reference
    of_both: bool = False
    of_values: bool = False


@dataclass(frozen=True, kw_only=True)
class ProbeSpec:
    """A judgement: what is recorded beside a run, and what is made of it.

    All but the name may be left out.

    Attributes:
        name: in messages, and to tell it from others.
        engine: on each rank, takes the `LayoutJob` of an engine's run; returns a `Probe` that
            watches the run, or None.
        loop: the same of a script, whose run is told by a `LoopJob`.
        gates: what may refuse a cell.
        figures: what report.json has of a cell.
        explains: takes the `Case` of a difference, the same with the values around it, and the
            `Diagnosis`; returns lines below the first ones of the failure.
        proposes: the same; its lines say what would pass, and come last.
        blames: takes the `Case` of a difference; returns what is wrong with the candidate alone, by
            which a difference without a known pattern is named.
        names_line: takes the `Case` and the first difference; returns the operation at fault as
            `Named`. The first judgement that has it is asked.
        further: takes the `CheckedTest`, its `Terms` and the name of a baseline, empty for none;
            returns what goes on from a ruling, a `FurtherRule`, or None.
        skips: takes what a layout or function has `Declared`, the `Settings` and the device; skips
            the test if it cannot run here.
        in_bare: whether a bare cell (`precision_probes = none`) has it, too.
    """

    name: str
    engine: Reference | None = None
    loop: Reference | None = None
    gates: Sequence[GateSpec] = ()
    figures: Sequence[FigureSpec] = ()
    explains: Reference | None = None
    proposes: Reference | None = None
    blames: Reference | None = None
    names_line: Reference | None = None
    further: Reference | None = None
    skips: Reference | None = None
    in_bare: bool = False

    def __str__(self) -> str:
        return f"the judgement {self.name!r}"


@dataclass(frozen=True)
class ReporterSpec:
    """A reporter of a session, or of one comparison.

    Attributes:
        name: in messages, and to tell it from others.
        function: takes the cells as report.json has them, and the folder of that, None without
            one; may write files into it, and returns the lines that the terminal shows.
    """

    name: str
    function: Reference

    def __str__(self) -> str:
        return f"the reporter {self.name!r}"


SpecT = TypeVar("SpecT", ProbeSpec, ReporterSpec)


def expect_specs(specs: Iterable[object], kind: type[SpecT]) -> list[SpecT]:
    """Return the specs that plugins register, as a list.

    Args:
        specs: what the implementations of a hook have returned: each one, several or None.
        kind: of which all must be.

    Raises:
        pytest.UsageError: one is of another type, or two have one name.
    """
    listed: list[SpecT] = []
    for returned in specs:
        several = returned if isinstance(returned, (list, tuple)) else [returned]
        for spec in several:
            if not isinstance(spec, kind):
                if spec is None:
                    continue
                expected = f"a {kind.__name__}, several, or None from a plugin"
                raise usage_error()(expected_but_got(expected, f"{spec!r} ({type(spec).__name__})"))
            if spec.name in [other.name for other in listed]:
                raise usage_error()(
                    expected_but_got(
                        f"one {kind.__name__} of each name", f"two of {spec.name!r}", "rename one"
                    )
                )
            listed.append(spec)
    return listed


class Registered:
    """The judgements of a session.

    Args:
        ask: returns what the plugins bring; called when something is first asked of them.
    """

    def __init__(self, ask: Callable[[], Iterable[object]]) -> None:
        self._ask = ask

    @cached_property
    def probes(self) -> Sequence[ProbeSpec]:
        """Return the judgements, those of this package first.

        Raises:
            pytest.UsageError: see `expect_specs`.
        """
        return expect_specs(self._ask(), ProbeSpec)

    def of(self, *, bare: bool) -> list[ProbeSpec]:
        """Return the judgements of a cell, or of a bare one."""
        return [probe for probe in self.probes if probe.in_bare or not bare]

    def functions(self, field: str, *, bare: bool = False) -> list[Callable[..., Any]]:
        """Return the functions that a cell's judgements have in a field, such as `explains`."""
        return [
            resolved(reference, probe)
            for probe in self.of(bare=bare)
            if (reference := getattr(probe, field)) is not None
        ]


OF_PACKAGE = Registered(lambda: [resolve_name(f"{_PACKAGE}.probes:package_probes")()])
"""The judgements without those of other plugins, where there is no pytest to ask."""
