"""Shards are recorded as digests, each by the rank that holds it, and held to whole tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_precision.__main__ import main
from pytest_precision.options import Settings
from pytest_precision.plugin.resources import Resources
from pytest_precision.ranks.needs import Needs

SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn

mode, moved, ranks = sys.argv[1], sys.argv[2:], int(os.environ.get("WORLD_SIZE", 1))
if ranks > 1:
    dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 512), nn.LayerNorm(512), nn.Linear(512, 64))
if mode in ("fsdp2", "hsdp"):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    shape, names = ((ranks,), ("s",)) if mode == "fsdp2" else ((2, ranks // 2), ("r", "s"))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    for module in model:
        fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
elif mode == "tp":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
    split = ColwiseParallel(output_layouts=Replicate())
    parallelize_module(model, init_device_mesh("cpu", (ranks,)), {"0": split})
elif mode == "fsdp1":
    from torch.distributed.fsdp import FullyShardedDataParallel
    model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
elif mode == "ddp":
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=2**-10)
data = torch.randint(-4, 4, (8, 512)) / 4.0
for step in range(4):
    model(data).pow(2).mean().backward()  # on each rank the same, so that means are exact
    optimizer.step()
    if moved and step == 1 and dist.get_rank() == ranks - 1:
        weight = next(model.parameters())
        with torch.no_grad():
            weight.to_local().view(-1)[5] += 0.25
    optimizer.zero_grad()
"""

STEPS = "--steps", "4"

RecordShards = Callable[..., Path]


@pytest.fixture
def record_shards(in_folder: Path, resources: Resources) -> RecordShards:
    """Record the script on ranks such as torchrun starts."""
    (in_folder / "sharded.py").write_text(SCRIPT)

    def run(name: str, mode: str, ranks: int, *words: str, digest: tuple[str, ...] = ()) -> Path:
        command = ["record", "--out", name, *STEPS, *digest, "--", "sharded.py", mode, *words]
        if ranks == 1:
            assert main(command) == 0
        else:
            pool = resources.ranks(Settings(timeout=600, device="cpu"))
            assert pool.run(ranks, main, command, needs=Needs(launched=True)) == [0] * ranks
        return in_folder / name

    return run


@pytest.mark.parametrize(
    ("mode", "ranks"),
    [
        ("fsdp2", 2),
        pytest.param("fsdp2", 4, marks=pytest.mark.nightly),
        pytest.param("hsdp", 4, marks=pytest.mark.nightly),
        pytest.param("tp", 2, marks=pytest.mark.nightly),
        pytest.param("tp", 4, marks=pytest.mark.nightly),
        pytest.param("fsdp1", 2, marks=pytest.mark.nightly),
        pytest.param("ddp", 2, marks=pytest.mark.nightly),
    ],
)
def test_shards_are_held_to_one_rank(
    record_shards: RecordShards, capsys: pytest.CaptureFixture[str], mode: str, ranks: int
) -> None:
    """Whoever holds which part, digests add up to that of one rank's tensor, and to no other."""
    ours, theirs = record_shards("ours", mode, ranks), record_shards("theirs", "plain", 1)
    assert main(["compare", str(ours), str(theirs)]) == 0
    assert "tensors in 4 steps agree" in capsys.readouterr().out
    sizes = [(ours / f"rank{rank}.bin").stat().st_size for rank in range(ranks)]
    assert max(sizes) < 100_000  # digests, where the weights are a megabyte


@pytest.mark.parametrize(
    ("mode", "ranks", "words"),
    [
        ("fsdp2", 2, "0.weight, first in the shard of rank 1"),
        pytest.param(
            *("fsdp2", 32, "0.weight, first in the shard of rank 31"),
            marks=[pytest.mark.nightly, pytest.mark.timeout(900)],
        ),
        pytest.param(
            *("hsdp", 4, "in the candidate: rank 3 and rank 1 hold different bits"),
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_shard_that_differs_is_named(
    record_shards: RecordShards,
    capsys: pytest.CaptureFixture[str],
    mode: str,
    ranks: int,
    words: str,
) -> None:
    """Without values, digests say which tensor and on which rank, of replicas and of equal cuts."""
    ours, theirs = record_shards("ours", mode, ranks, "moved"), record_shards("theirs", mode, ranks)
    assert main(["compare", str(ours), str(theirs)]) == 1
    assert words in capsys.readouterr().out


def test_two_digests_are_refused(
    record_shards: RecordShards, capsys: pytest.CaptureFixture[str]
) -> None:
    """They say nothing of each other, so that no tensor is called different."""
    sides = [
        record_shards(name, "plain", 1, digest=("--digest", name))
        for name in ("lin8-128", "xxh3-128")
    ]
    with pytest.raises(SystemExit) as end:
        main(["compare", *map(str, sides)])
    message = capsys.readouterr().err
    assert end.value.code == 2
    assert "expected two recordings with the same digest but got lin8-128 in" in message
    assert "--digest lin8-128 -- sharded.py plain" in message
    again = record_shards("again", "plain", 1, digest=("--digest", "xxh3-128"))
    assert main(["compare", str(sides[1]), str(again)]) == 0
