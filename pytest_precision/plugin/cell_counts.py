"""CellCounts: how many cells (combinations of axis values) a session has, as a line of text.

Collection must not import torch, so it knows only which formats are installed and which device is
requested; no rank has inspected its GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pytest_precision.matrix.precisions import PRECISIONS
from pytest_precision.options import Settings
from pytest_precision.options.settings import BARE
from pytest_precision.plugin.supported import untested_torch
from pytest_precision.ranks.gpus.backend import installed_version, native_refusal, release_of
from pytest_precision.report.provenance import version_of
from pytest_precision.report.status import count


class CellCounts(NamedTuple):
    """How many cells (axis combinations) a session has and runs, and why others were not made.

    Attributes:
        collected: number of cells of all matrix tests, selected or not.
        cells: number of cells that are left to run.
        tests: number of tests that these cells belong to.
        coverages: different values of the option `coverage` among these tests.
        not_made: reason to number of axis combinations that make no sense and became no cell.
        formats: what is known of the backends of the cells that quantize.
    """

    collected: int = 0
    cells: int = 0
    tests: int = 0
    coverages: Sequence[str] = ()
    not_made: Mapping[str, int] = {}
    formats: Sequence[str] = ()

    def line(self, settings: Settings) -> str:
        """Return the text above the results: how many matrix cells run, and what selected them.

        Args:
            settings: settings of the session.
        """
        how = [f"coverage {', '.join(self.coverages)}"] if self.coverages else []
        how += [f"select {axis}={','.join(values)}" for axis, values in settings.select]
        how += ["shard {}/{}".format(*settings.shard)] if settings.shard != (1, 1) else []
        head = f"{count(self.cells, 'cell')} of {count(self.tests, 'test')}"
        parts = [f"precision: {head}" + (f" ({', '.join(how)})" if how else "")]
        if settings.bare:
            parts.append(f"judgements are off ({BARE}): both sides are compared, and nothing else")
        if settings.preloads:
            parts.append(f"{', '.join(settings.preload)} preloaded")
        parts += [f"{number} not made: {reason}" for reason, number in self.not_made.items()]
        parts += [*self.formats, *announced(settings)]
        return "; ".join([*parts, *untested_torch(version_of("torch"))])


def announced(settings: Settings) -> list[str]:
    """Return a line on `--precision-te` for the session's header; empty for the default.

    Whether any layout uses Transformer Engine is known when it runs; report.json says it then.
    """
    words = {"cpu": "Transformer Engine on the CPU", "off": "no Transformer Engine on the CPU"}
    return [words[settings.te]] if settings.te in words else []


class Asked(NamedTuple):
    """What one test asks for in one precision: hardware or emulated number formats, and a device.

    Attributes:
        test: node id, without parameters.
        precision: name of a quantized precision.
        backend: `auto`, `emulated` or `native`.
        device: value of `--precision-device`.
    """

    test: str
    precision: str
    backend: str
    device: str


def refusals(requests: Iterable[Asked]) -> list[str]:
    """Return an error for each test that requires hardware number formats that are missing."""
    return [
        f"{request.test}: {native_refusal(request.precision, lacks)}"
        for request in requests
        if request.backend == "native"
        and (lacks := _missing_support(request.precision, request.device))
    ]


def announcements(requests: Iterable[Asked]) -> list[str]:
    """Return lines that say whether number formats are emulated or run on the GPU."""
    return list(dict.fromkeys(map(_announcement, requests)))


def _announcement(request: Asked) -> str:
    lacks = _missing_support(request.precision, request.device)
    if request.backend == "emulated" or lacks:
        return "number formats emulated" + (f": {lacks}" if request.backend == "auto" else "")
    where = " where the GPU has them" if request.backend == "auto" else ""
    return f"number formats native{where}: Transformer Engine {installed_version()}"


def _missing_support(precision: str, device: str) -> str:
    """Return why a precision cannot use a GPU's hardware formats; empty if it can."""
    lacks = []
    engine = installed_version()
    native = PRECISIONS[precision].native
    if not native:
        lacks.append(f"no {precision} in Transformer Engine")
    elif engine is None:
        lacks.append("no Transformer Engine")
    elif release_of(engine) < min(number_format.since for number_format in native):
        lacks.append(f"a Transformer Engine too old for {precision} ({engine})")
    if device == "cpu":
        lacks.append("ranks on the CPU")
    return " and ".join(lacks)
