"""Weights of an engine come by `import` beside a trainer that was recorded, without more words."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from planted_rollouts import fused, updated
from safetensors.torch import save_file
from tiny_decoder import TinyDecoder, sequences, tiny
from torch import Tensor

from pytest_precision.__main__ import main
from pytest_precision.rollout import Scorer, show_scores, weight_snapshot
from pytest_precision.rollout.score_recording import recording_scores


def imported(folder: Path, name: str, shown: Mapping[tuple[str, str], Any], **more: Any) -> str:
    """Write tensors, by kind and name, as safetensors with a sidecar, and import them."""
    file, rows = folder / f"{name}.safetensors", []
    tensors = {}
    for kind, tensor_name in shown:
        rows.append({"kind": kind, "name": tensor_name, "key": f"{kind} {tensor_name}"})
        tensors[f"{kind} {tensor_name}"] = shown[kind, tensor_name].contiguous().clone()
    save_file(tensors, file)
    moments = [{"step": 1, "phase": "forward_backward", "tensors": rows}]
    sidecar = {"sidecar": 1, "moments": moments, **more}
    Path(f"{file}.json").write_text(json.dumps(sidecar), encoding="utf-8")
    assert main(["import", str(file), "--out", str(folder / name)]) == 0
    return str(folder / name)


def weights_of(model: TinyDecoder) -> dict[tuple[str, str], Tensor | str]:
    """Return what an engine holds that fuses queries, keys and values."""
    return {("weight", name): tensor for name, tensor in fused(model).items()}


@pytest.fixture
def trainer(tmp_path: Path) -> tuple[TinyDecoder, TinyDecoder, str]:
    """A trainer after an update, what it was before, and its recording."""
    model, before = updated(tiny(torch.float32))
    history = {3: weight_snapshot(before)}
    with recording_scores(tmp_path / "trainer", Path("score.py"), ()):
        show_scores(model, sequences=sequences(), cast="bfloat16", names="llama", history=history)
    return model, before, str(tmp_path / "trainer")


def test_weights_alone_are_compared(
    trainer: tuple[TinyDecoder, TinyDecoder, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What agrees passes in part, since nothing was scored; what is stale has its step."""
    model, before, recording = trainer
    engine = copy.deepcopy(model).to(torch.bfloat16)
    assert main(["compare", imported(tmp_path, "new", weights_of(engine)), recording]) == 0
    assert "log-probabilities are not compared: the candidate shows none" in capsys.readouterr().out
    engine.layers[1].self_attn.v_proj.weight.data.copy_(before.layers[1].self_attn.v_proj.weight)
    assert main(["compare", imported(tmp_path, "stale", weights_of(engine)), recording]) == 1
    place = "layers.1.self_attn"
    words = f"stale: {place}.v_proj in {place}.qkv_proj holds the weights of step 3"
    assert words in capsys.readouterr().out


def test_log_probabilities_are_imported_beside_weights(
    trainer: tuple[TinyDecoder, TinyDecoder, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No kind has to be left out of the comparison, and a wrong one is named by its token."""
    model, _, recording = trainer
    engine = copy.deepcopy(model).to(torch.bfloat16)
    scores = Scorer(model=engine).scores(sequences()).logprobs
    shown = weights_of(engine) | {("logprob", f"sequence{n}"): scores[n] for n in scores}
    bound = ["--criterion", "logprob=close(rtol=0, atol=0.1)"]
    assert main(["compare", imported(tmp_path, "engine", shown), recording, *bound]) == 0
    shown["logprob", "sequence1"] = scores[1] - (torch.arange(len(scores[1])) == 4).float()
    assert main(["compare", imported(tmp_path, "wrong", shown), recording, *bound]) == 1
    assert "logprob of token 5 of sequence 1 is -" in capsys.readouterr().out


def test_two_imports_of_scores_are_compared_by_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their sidecars may say that they train nothing; weights that nobody shows are left out."""
    scores = Scorer(model=tiny()).scores(sequences()).logprobs
    shown = {("logprob", f"sequence {n}"): scores[n] for n in scores}
    absent = {"unobservable": {"loss": "no training", "master": "no training"}}
    reference = imported(tmp_path, "reference", shown, **absent)
    shown["logprob", "sequence 2"] = scores[2] + 1.0
    ours = imported(tmp_path, "ours", shown, **absent)
    left = ["--criterion", 'weight=unchecked(reason="none are shown")']
    assert main(["compare", ours, reference, *left]) == 1
    assert "logprob of token 1 of sequence 2 is -" in capsys.readouterr().out
    shown["logprob", "sequence 2"] = scores[2]
    assert main(["compare", imported(tmp_path, "same", shown, **absent), reference, *left]) == 0
