"""Every layout and workload of the package trains on a GPU, alone and with two ranks on it."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable
from functools import partial

import gpu_sides
import pytest

from pytest_precision import Cell, Parity, ParityError, layouts, unchecked, workloads
from pytest_precision.options import Settings
from pytest_precision.ranks import RankPool
from pytest_precision.ranks.gpus.backend import installed_version

Checked = Callable[..., Parity]

NEAR_ENOUGH = 64 * 2.0**-24
"""Norm of a difference, in unit roundoffs of fp32, within which a GPU agrees with a CPU after four
steps. The CPU is 3.4 of them from fp64 in a loss, and 1.5 in the weights. An H200 is 1.0 of them
from the CPU in the losses, and 1.9 in the weights."""

TRAINED = [
    (layout, workload)
    for layout in gpu_sides.AXES
    for workload in ("mlp", "gpt", "moe")
    if workload == "moe" or layout not in gpu_sides.OF_EXPERTS
]


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize(("layout", "workload"), TRAINED)
def test_a_layout_has_the_bits_of_its_first_run(
    checked: Checked, layout: str, workload: str, world_size: int
) -> None:
    """Whatever it computes, it computes it again; two ranks on one GPU talk by gloo."""
    own = getattr(layouts, layout)
    verdict = checked(Cell(world_size=world_size, **gpu_sides.AXES[layout])).check(
        partial(gpu_sides.itself, own), own, workload=getattr(workloads, workload)
    )
    assert verdict.outcome == "pass"


@pytest.mark.parametrize("world_size", [1, 2])
def test_quantized_weights_have_the_bits_of_their_first_run(
    checked: Checked, world_size: int
) -> None:
    """By Transformer Engine's kernels where these are, else by arithmetic of torch's on the GPU."""
    own = layouts.distributed_optimizer
    verdict = checked(Cell("mxfp8", "quantized", world_size=world_size)).check(
        partial(gpu_sides.itself, own), own, workload=workloads.mlp
    )
    assert verdict.outcome == "pass"


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("layout", gpu_sides.OF_TRANSFORMER_ENGINE)
def test_transformer_engine_has_the_bits_of_its_first_run(
    checked: Checked, layout: str, world_size: int, gpus: int
) -> None:
    """Its own kernels; on a CPU, tests/te has the stand-in for them."""
    if installed_version() is None:
        pytest.skip("expected Transformer Engine, and it is not installed")
    own = getattr(layouts, layout)
    verdict = checked(Cell(world_size=world_size, **gpu_sides.BF16)).check(
        partial(gpu_sides.itself_with_transformer_engine, own),
        own,
        workload=gpu_sides.OF_TRANSFORMER_ENGINE[layout],
    )
    assert verdict.outcome == "pass"


@pytest.mark.parametrize("layout", ["fsdp2", "distributed_optimizer"])
def test_a_sharded_layout_has_the_bits_of_a_replicated_one(checked: Checked, layout: str) -> None:
    """Over nccl where there is a GPU for each rank."""
    verdict = checked(Cell(world_size=2)).check(
        getattr(layouts, layout), layouts.adamw, workload=workloads.gpt
    )
    assert verdict.outcome == "pass"


def test_a_gpu_and_the_cpu_agree_within_a_bound(settings: Settings, record_property) -> None:
    """In fp32 their sums differ in order alone; the report has the ratio to the bound."""
    found = {}
    for device in ("cpu", settings.device):
        pool = RankPool("fresh", 120, device)
        try:
            [found[device]] = pool.run(1, results_of, device)
        finally:
            pool.close()
    ratios = {
        what: distance(found[settings.device][what], found["cpu"][what]) / NEAR_ENOUGH
        for what in ("losses", "weights")
    }
    record_property("gpu_against_cpu", json.dumps(ratios))
    assert max(ratios.values()) <= 1


def distance(found: list[float], expected: list[float]) -> float:
    """Return the norm of the difference, in norms of what is expected."""
    return math.dist(found, expected) / math.hypot(*expected)


def results_of(device: str) -> dict[str, list[float]]:
    """Return the losses of four train steps in fp32, and all weights after them."""
    import torch

    cell = Cell(sequence="train4", device=device)
    torch.manual_seed(1)
    workload = workloads.mlp()
    engine, losses = layouts.adamw(workload, cell), []
    for step in range(1, 5):
        engine.forward_backward(step)
        seen = [float(one.tensor) for one in engine.capture.kept("loss")]
        losses.append(sum(seen))
        for phase in ("reduce_grads", "clip_grads", "optimizer_step"):
            getattr(engine, phase)()
        engine.capture.begin()
    weights = torch.cat([one.detach().cpu().flatten() for one in engine.model.parameters()])
    return {"losses": losses, "weights": weights.tolist()}


@pytest.mark.parametrize("side", ["on_a_side_stream", "recomputed"])
def test_streams_and_recomputation_have_the_bits_without_them(checked: Checked, side: str) -> None:
    """G5, G16: what is read on the thread of the backward, and on streams of the side's own."""
    verdict = checked(Cell()).check(getattr(gpu_sides, side), layouts.adamw, workload=workloads.mlp)
    assert verdict.outcome == "pass"


@pytest.mark.parametrize("sequence", ["train2-save-load-train2", "train4"])
def test_dropout_goes_on_after_a_load(checked: Checked, sequence: str) -> None:
    """G4: it draws from the generator of the device, which a checkpoint holds."""
    verdict = checked(Cell(sequence=sequence)).check(
        gpu_sides.with_dropout,
        gpu_sides.with_dropout_again,
        workload=workloads.mlp,
        oracle={"grad": unchecked(reason="the workload's own model drops nothing")},
    )
    assert verdict.outcome == "pass"


OVERLAPPED = partial(layouts.distributed_optimizer, overlap_grad_reduce=True)


@pytest.mark.parametrize(
    ("world_size", "candidate"), [(1, gpu_sides.on_a_side_stream), (2, OVERLAPPED)]
)
def test_a_run_that_is_delayed_on_streams_has_the_same_bits(
    checked: Checked, world_size: int, candidate: gpu_sides.Layout
) -> None:
    """G13: one rank is late on the device, and nothing is looked at before a step ends."""
    parity = checked(Cell(world_size=world_size), jitter=2)
    assert parity.check(candidate, layouts.adamw, workload=workloads.mlp).outcome == "pass"


@pytest.mark.parametrize(
    ("side", "world_size", "words"),
    [
        ("hangs", 2, "hung"),
        ("needs_more_than_there_is", 1, "memory|allocate"),
        ("reads_where_nothing_is", 1, "assert|index out of range|illegal"),
    ],
)
def test_what_ends_a_rank_is_named_and_the_next_cell_is_green(
    checked: Checked, side: str, world_size: int, words: str
) -> None:
    """G3: a hang, no memory, an address outside: none of them reaches another cell.

    On one GPU the two ranks share it, and hang in gloo.
    """
    ends_and_goes_on(checked, side, world_size, words)


def test_a_hang_in_nccl_is_named_and_the_next_cell_is_green(checked: Checked, gpus: int) -> None:
    """G3: its kernel waits on the device of each rank, for a peer that never comes."""
    if gpus < 2:
        pytest.skip(f"expected 2 GPUs, since nccl joins no ranks that share one, but got {gpus}")
    ends_and_goes_on(checked, "hangs", 2, "hung", ranks_per_device=1)


def ends_and_goes_on(
    checked: Checked, side: str, world_size: int, words: str, **options: object
) -> None:
    """Expect a check of a side to fail with some words, and the next one to pass."""
    cell = Cell(world_size=world_size)
    with pytest.raises(ParityError, match=words):
        checked(cell, timeout=20.0, **options).check(
            getattr(gpu_sides, side), layouts.adamw, workload=workloads.mlp
        )
    candidate = partial(gpu_sides.itself, layouts.adamw)
    verdict = checked(cell, **options).check(candidate, layouts.adamw, workload=workloads.mlp)
    assert verdict.outcome == "pass"


@pytest.mark.parametrize(("deterministic", "passes"), [("error", False), ("warn", True)])
def test_an_operator_without_an_order_is_refused_or_named(
    checked: Checked, deterministic: str, passes: bool
) -> None:
    """G14: on a GPU there are many of them."""
    parity = checked(Cell(), deterministic=deterministic)
    sides = gpu_sides.sums_without_an_order, layouts.adamw
    if passes:
        verdict = parity.check(*sides, workload=workloads.mlp)
        assert "deterministic algorithms: only warned about" in verdict.unexercised
    else:
        with pytest.raises(ParityError, match="deterministic"):
            parity.check(*sides, workload=workloads.mlp)


INLINE = """
import pytest
from pytest_precision import layouts, workloads

@pytest.mark.precision_matrix(world_size=[1])
def test_it(parity):
    parity.check(layouts.ddp, layouts.adamw, workload=workloads.mlp)
"""

Session = Callable[..., "subprocess.CompletedProcess[str]"]


def test_the_process_of_pytest_can_be_the_rank(session: Session) -> None:
    """G7: with the variables, the device and the lock of one, for a debugger."""
    ran = session(INLINE, "--precision-ranks=inline")
    assert "1 passed" in ran.stdout, ran.stdout


STOPS = """
import pytest
import torch
from pytest_precision import layouts, workloads

def wrong(workload, cell):
    planted = torch.full((), 42.0, device=cell.device)
    raise ValueError(f"planted in {layouts.adamw(workload, cell)}")

@pytest.mark.precision_matrix(world_size=[1])
def test_it(parity):
    parity.check(wrong, layouts.adamw, workload=workloads.mlp)
"""


def test_a_debugger_stops_in_the_layout(session: Session, settings: Settings) -> None:
    """G7: where it failed, with tensors on the device at hand."""
    ran = session(STOPS, "--precision-ranks=inline", "--pdb", stdin=f"p {SHOWN}\nc\n")
    assert f"(Pdb) ('{settings.device}', 42.0)" in ran.stdout, ran.stdout
    assert "1 failed" in ran.stdout


SHOWN = "(planted.device.type, planted.item())"


def test_a_module_that_asks_for_cuda_may_be_preloaded(session: Session, tmp_path) -> None:
    """G1: the question alone would have every rank die."""
    (tmp_path / "asks.py").write_text("import torch\nASKED = torch.cuda.is_available()\n")
    ran = session(INLINE, "-o", "precision_preload=asks")
    assert "1 passed" in ran.stdout, ran.stdout


def test_a_report_names_the_gpu(session: Session, tmp_path, gpus: int) -> None:
    """G11: with its driver and libraries, and nothing of the host."""
    import torch

    session(INLINE, "--precision-report=report")
    [side] = json.loads((tmp_path / "report" / "report.json").read_text())["environment"]["ranks"]
    assert side["gpu"] == torch.cuda.get_device_name()
    assert side["gpus"] == str(gpus)
    assert {"capability", "cuda", "cudnn", "driver", "nccl"} <= side.keys()
