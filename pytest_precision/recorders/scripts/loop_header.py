"""Say in a trace's header what holds for the whole of a loop, and what it could not show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

import torch

from pytest_precision.engine import groups
from pytest_precision.matrix.axis_reads import so_far
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.ways_in import WayIn
from pytest_precision.recorders.run_environment import environment_of
from pytest_precision.recorders.scripts.loop_trace import LoopTrace
from pytest_precision.recorders.scripts.matched_places import said_of_places
from pytest_precision.recorders.scripts.steps import ON_DEMAND, Steps
from pytest_precision.trace.header import Header
from pytest_precision.trace.rank_place import RankPlace


def header_of(
    trace: LoopTrace,
    runs: Sequence[Steps],
    cell: Cell,
    way: WayIn,
    products: Set[str] = frozenset(),
    *,
    seeded: bool = True,
) -> Header:
    """Return the header of a script's trace on this rank, for the steps that have run so far."""
    parameters = (tensor for run in runs for _, tensor in run.reader.names.parameters())
    device = next((tensor.device for tensor in parameters), torch.device("cpu"))
    place = RankPlace.of_process(trace.rank, device)
    return Header(
        trace.world_size,
        {kind: why for run in runs for kind, why in unobservable(run, way)},
        environment_of(cell, seeded=seeded),
        violations=tuple(words for run in runs for words in run.ends.violations),
        products=tuple(sorted(products)),
        given=tuple(dict.fromkeys(name for run in runs for name in run.buffer.shown)),
        unshown={
            name: why
            for run in runs
            for optimizer in run.reader.optimizers
            for name, why in groups.unshown(optimizer).items()
        }
        | {name: why for run in runs for name, why in run.reader.part.unshown().items()}
        | {name: why for run in runs for name, why in said_of_places(run.reader.matched).items()},
        read=so_far(),
        place={"host": place.host, "device": place.device, "serial": place.serial},
    )


def unobservable(steps: Steps, way: WayIn) -> Iterator[tuple[str, str]]:
    """Yield (kind, reason) for the tensors of a loop that could not be observed or named."""
    observed_kinds = steps.buffer.seen
    if ON_DEMAND not in observed_kinds:
        yield ON_DEMAND, way.shows_grad
    if "used_param" not in observed_kinds:
        yield "used_param", "no module was called while gradients were on, unless in compiled code"
    if "loss" not in observed_kinds:
        yield "loss", "Tensor.backward was not called"
    for module, why in steps.buffer.unread.items():
        yield f"used_param in {module}", why
    for prefix in steps.reader.names.twins:
        yield (
            "names",
            f"{prefix}* has the structure of an earlier model, which still exists and was not "
            "called again; if the new model replaces it, delete the earlier one first, or resume "
            "in a new run with @script(resume=function)",
        )
    if steps.reader.unnamed:
        first, *others = steps.reader.unnamed
        more = f" and {len(others)} more" if others else ""
        yield (
            "unnamed",
            f"the optimizer's tensor at {first}{more} is in no module that was called, and is "
            "compared by that position",
        )
