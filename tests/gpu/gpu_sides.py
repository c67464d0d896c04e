"""Sides of checks that use what a GPU has and a CPU lacks, or do what ends a rank there."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pytest_precision import Cell, Engine, Workload, layouts, workloads

Layout = Callable[[Workload, Cell], Engine]

FP32: dict[str, str] = {}
BF16 = {"precision": "bf16", "primary_weight": "bf16"}

AXES = {
    **dict.fromkeys(("adamw", "ddp", "fsdp2"), FP32),
    "autocast": {"precision": "bf16", "primary_weight": "fp32"},
    **dict.fromkeys(("master_adamw", "fused_adam", "any_precision_adamw"), BF16),
    **dict.fromkeys(("distributed_optimizer", "discrete_experts", "grouped_experts"), BF16),
}
"""The layouts that need nothing but torch, and the cell that each is trained in."""

OF_EXPERTS = ("discrete_experts", "grouped_experts")
"""Those that train a mixture alone."""

OF_TRANSFORMER_ENGINE = {
    "te_linears": partial(workloads.mlp, width=64),
    "te_blocks": partial(workloads.gpt, heads=2, head_width=16, fixed_temperature=True),
    "te_experts": partial(workloads.moe, width=32, hidden=64),
}
"""Its layouts, and a workload of each whose sizes its kernels take."""


def itself(layout: Layout, workload: Workload, cell: Cell) -> Engine:
    """Return what a layout returns, as a side of its own."""
    return layout(workload, cell)


@layouts.uses_transformer_engine
def itself_with_transformer_engine(layout: Layout, workload: Workload, cell: Cell) -> Engine:
    """Return what a layout of Transformer Engine returns, as a side of its own."""
    return layout(workload, cell)


def with_dropout(workload: Workload, cell: Cell) -> Engine:
    """Return an engine whose linear layers drop a tenth, drawn from the generator of the device."""
    engine = layouts.adamw(workload, cell)
    for module in engine.model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda _, __, made: nn.functional.dropout(made, 0.1))
    return engine


def with_dropout_again(workload: Workload, cell: Cell) -> Engine:
    """Return the same, as another side."""
    return with_dropout(workload, cell)


def _around_linears(engine: Engine, around: Callable[[nn.Module, Any, Tensor], Tensor]) -> Engine:
    for module in [*engine.model.modules()]:
        if isinstance(module, nn.Linear):
            forward = module.forward
            module.forward = lambda x, forward=forward: around(forward, x)
    return engine


def on_a_side_stream(workload: Workload, cell: Cell) -> Engine:
    """Return an engine whose linear layers run on a stream of their own, which is waited for."""
    if cell.device != "cuda":
        return layouts.adamw(workload, cell)
    side = torch.cuda.Stream()

    def around(forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            made = forward(x)
        torch.cuda.current_stream().wait_stream(side)
        return made

    return _around_linears(layouts.adamw(workload, cell), around)


def recomputed(workload: Workload, cell: Cell) -> Engine:
    """Return an engine that computes its linear layers once more in the backward."""

    def around(forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return checkpoint(forward, x, use_reentrant=False)

    return _around_linears(layouts.adamw(workload, cell), around)


def hangs(workload: Workload, cell: Cell) -> Engine:
    """Have one rank never come to a collective of the others."""
    if dist.get_rank() == 0:
        time.sleep(3600)
    dist.all_reduce(torch.ones(4, device=cell.device))
    if cell.device == "cuda":
        torch.cuda.synchronize()
    return layouts.adamw(workload, cell)


def needs_more_than_there_is(workload: Workload, cell: Cell) -> Engine:
    """Ask for more memory than any GPU has."""
    torch.empty(1 << 46, dtype=torch.uint8, device=cell.device)
    return layouts.adamw(workload, cell)


def reads_where_nothing_is(workload: Workload, cell: Cell) -> Engine:
    """Read outside of a table on the device, which its kernel asserts."""
    table = nn.Embedding(4, 4, device=cell.device)
    table(torch.tensor([1 << 20], device=cell.device))
    if cell.device == "cuda":
        torch.cuda.synchronize()
    return layouts.adamw(workload, cell)


def sums_without_an_order(workload: Workload, cell: Cell) -> Engine:
    """Call an operator that has no deterministic algorithm on a GPU, nor on a CPU."""
    values = torch.zeros(8, device=cell.device)
    values.put_(torch.arange(8, device=cell.device), torch.ones(8, device=cell.device))
    return layouts.adamw(workload, cell)


def captured() -> Callable[..., None]:
    """Return a script whose model is replayed from a CUDA graph, captured while it is recorded."""

    def script(cell: Cell, record: Any) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        with record():
            graphed = torch.cuda.make_graphed_callables(model, (torch.randn(8, 16, device="cuda"),))
            while True:
                graphed(torch.ones(8, 16, device="cuda")).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()

    return script


def allocates(share: float) -> float:
    """Take and leave a share of the GPU's memory; return the share that others can have then."""
    free, total = torch.cuda.mem_get_info()
    taken = torch.empty(int(total * share), dtype=torch.uint8, device="cuda")
    del taken
    return free / total


def device_of_rank() -> tuple[str, str]:
    """Return the UUID of the current device, and of `cuda:LOCAL_RANK`."""
    import os

    own = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
    local = torch.cuda.get_device_properties(int(os.environ["LOCAL_RANK"])).uuid
    return str(own), str(local)


def attention_without_flash() -> None:
    """Leave flash attention off, and another stream than the default one."""
    torch.backends.cuda.enable_flash_sdp(False)
    torch.cuda.set_stream(torch.cuda.Stream())


def sums_in_groups() -> float:
    """Sum over a group of its own, and leave the group to whoever cleans up."""
    group = dist.new_group([*range(dist.get_world_size())])
    value = torch.ones(1 << 20, device="cuda" if torch.cuda.is_available() else "cpu")
    for _ in range(20):
        dist.all_reduce(value, group=group)
        value /= dist.get_world_size()
    return float(value[0])


def digests_of_a_side_stream(large: int) -> tuple[str, str]:
    """Return the digest of what a side stream is still writing, and of what it writes."""
    import tempfile
    from pathlib import Path

    from pytest_precision import whole
    from pytest_precision.trace.digests import digest
    from pytest_precision.trace.moment import INIT
    from pytest_precision.trace.writer import TraceWriter

    value = torch.zeros(large, device="cuda")
    with (
        tempfile.TemporaryDirectory() as folder,
        TraceWriter(Path(folder), 0, digests=True, threads=2) as writer,
    ):
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(10**9)
            value.fill_(1.0)
            writer.add(INIT, [whole("param", "w", value)])
        [(_, found)] = writer._moments[INIT]
    return str(found), digest(torch.ones(large))
