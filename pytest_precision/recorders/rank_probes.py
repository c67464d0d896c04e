"""The probes of a run as plain data for the ranks: import paths, of which each rank makes its own.

A path leads to a function or class that takes the job of the run, and returns a `Probe` or None.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_precision.errors import expected_but_got
from pytest_precision.ranks.code.import_path import OUR_PACKAGE, ImportPath

if TYPE_CHECKING:
    from pytest_precision.recorders.probe import Probe
    from pytest_precision.registered import Reference, Registered


class RankProbe(NamedTuple):
    """What a judgement records beside a run.

    Attributes:
        judgement: its name.
        path: of the function or class that makes the probe.
    """

    judgement: str
    path: ImportPath

    @classmethod
    def of(cls, judgement: str, reference: Reference) -> RankProbe:
        """Make the import path, for a rank, of the probe that a judgement registers.

        Raises:
            TypeError: it is a callable without an import path.
        """
        if isinstance(reference, str):
            module, _, name = reference.partition(":")
            return cls(judgement, ImportPath(module, name))
        return cls(judgement, ImportPath.of(reference, f"the probe of {judgement!r}"))


def rank_probes(registered: Registered, field: str, *, bare: bool = False) -> tuple[RankProbe, ...]:
    """Return the probes that judgements add to a run.

    Args:
        registered: the judgements.
        field: `engine` or `loop`.
        bare: whether the run is that of a bare cell.

    Raises:
        TypeError: see `RankProbe.of`.
    """
    return tuple(
        RankProbe.of(probe.name, reference)
        for probe in registered.of(bare=bare)
        if (reference := getattr(probe, field)) is not None
    )


def made_probes(paths: Iterable[RankProbe], job: object) -> Iterator[Probe[Any]]:
    """Yield the probes of a run on this rank, the outermost first.

    Raises:
        ImportError: one cannot be imported; the message names its judgement.
        TypeError: what was made is no probe.
    """
    from pytest_precision.recorders.probe import Probe  # which imports torch

    for judgement, path in paths:
        who = f"the judgement {judgement!r}"
        try:
            make = path.resolve()
        except (ImportError, AttributeError) as error:
            got = f"{path.name} ({type(error).__name__}: {error})"
            advice = "name a module that this process can import, too"
            expected = f"{who} to have a probe that each rank can import"
            raise ImportError(expected_but_got(expected, got, advice)) from error
        probe = make(job)
        if probe is None:
            continue
        if not isinstance(probe, Probe):
            expected = f"{who} to make a Probe, or None,"
            raise TypeError(expected_but_got(expected, f"{probe!r} from {path.name}"))
        yield probe


@contextmanager
def naming_probes() -> Iterator[None]:
    """Name the probe of another plugin that raises in this context.

    A hook of a probe's may run deep in a forward, so that the traceback tells: it is the probe, if
    no frame of this package is further in than one of its methods.

    Raises:
        RuntimeError: such a probe has raised; its cause is what it raised.
    """
    try:
        yield
    except Exception as error:
        probe = _raising_probe(error)
        if probe is None:
            raise
        name = f"{type(probe).__module__}:{type(probe).__qualname__}"
        words = f"the probe {name} of another plugin raised {type(error).__name__}: {error}"
        raise RuntimeError(words) from error


def _raising_probe(error: Exception) -> object:
    """Return the probe that the innermost frames belong to; None if they belong to none."""
    from pytest_precision.recorders.probe import Probe

    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    for frame in reversed(frames):
        if frame.f_globals.get("__name__", "").partition(".")[0] == OUR_PACKAGE:
            return None
        if isinstance(probe := frame.f_locals.get("self"), Probe):
            return probe
    return None
