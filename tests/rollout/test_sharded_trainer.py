"""A trainer that is sharded over ranks is compared with an engine that holds whole weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_precision.__main__ import main
from pytest_precision.options import Settings
from pytest_precision.plugin.resources import Resources
from pytest_precision.ranks.needs import Needs

SCRIPT = """
import sys
import torch
import torch.distributed as dist
sys.path.insert(0, sys.argv.pop())
from tiny_decoder import sequences, tiny
from pytest_precision.rollout import show_scores, weight_snapshot

mode, *words = sys.argv[1:]
torch.set_num_threads(1)
model = tiny(torch.float32)
before = weight_snapshot(model)
with torch.no_grad():
    for parameter in model.parameters():
        parameter.mul_(1.0625)
options = {"cast": "bfloat16", "history": {3: before}}
if mode == "plain":
    model, options = model.to(torch.bfloat16), {}
    name = "layers.1.mlp.down_proj.weight"
    if "stale" in words:
        model.get_parameter(name).data.copy_(before[name])
    if "shard" in words:
        model.get_parameter(name).data[:, 32:].copy_(before[name][:, 32:])
else:
    from torch.distributed.device_mesh import init_device_mesh
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
if mode == "fsdp2":
    from torch.distributed.fsdp import fully_shard
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
elif mode == "tp":
    from torch.distributed.tensor.parallel import (
        ColwiseParallel, RowwiseParallel, parallelize_module,
    )
    plan = {"gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel()}
    for layer in model.layers:
        parallelize_module(layer.mlp, mesh, plan | {"down_proj": RowwiseParallel()})
show_scores(model, sequences=sequences(), **options)
"""

HERE = str(Path(__file__).parent)

RecordScores = Callable[..., str]


@pytest.fixture
def record_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resources: Resources
) -> RecordScores:
    """Record the script, on two ranks where it shards the model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "score.py").write_text(SCRIPT, encoding="utf-8")

    def run(name: str, mode: str, *words: str) -> str:
        command = ["score", "--out", name, "--", "score.py", mode, *words, HERE]
        if mode == "plain":
            assert main(command) == 0
        else:
            pool = resources.ranks(Settings(timeout=120, device="cpu"))
            assert pool.run(2, main, command, needs=Needs(launched=True)) == [0, 0]
        return str(tmp_path / name)

    return run


@pytest.mark.parametrize("mode", ["fsdp2", pytest.param("tp", marks=pytest.mark.nightly)])
def test_an_engine_is_held_to_a_sharded_trainer(
    record_scores: RecordScores, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    """Weights are put together and then cast; a stale one, or a stale shard, has its step."""
    trainer = record_scores("trainer", mode)
    bound = ["--criterion", "logprob=close(rtol=0, atol=0.1)"]
    assert main(["compare", record_scores("engine", "plain"), trainer, *bound]) == 0
    assert main(["compare", record_scores("stale", "plain", "stale"), trainer, *bound]) == 1
    words = "layers.1.mlp.down_proj holds the weights of step 3"
    assert f"stale: {words}" in capsys.readouterr().out
    assert main(["compare", record_scores("cut", "plain", "shard"), trainer, *bound]) == 1
    assert f"stale: columns 32 to 63 of {words}" in capsys.readouterr().out
