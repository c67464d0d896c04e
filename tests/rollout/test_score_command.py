"""Two recordings of scores, of scripts without an optimizer, are compared as other recordings."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_precision.__main__ import main
from pytest_precision.rollout.shown_weights import digested_elsewhere

SCRIPT = """
import sys
import torch
from tiny_decoder import sequences, tiny
from pytest_precision.rollout import Scorer, show_scores, weight_snapshot

way, dtype, *words = sys.argv[1:]
model = tiny(getattr(torch, dtype), mixture="mixture" in words)
if "stale" in words:
    model.layers[1].mlp.down_proj.weight.data[3] += 0.5
if "tilted" in words:
    tilt = 0.1 * torch.arange(4)
    model.layers[1].mlp.gate.register_forward_hook(lambda _, __, logits: logits + tilt)
cast = "bfloat16" if dtype == "float32" else None
weights = weight_snapshot(model, digests=True) if "digests" in words else None
show_scores(Scorer(model=model, way=way, weights=weights), sequences=sequences(), cast=cast)
"""


def recorded(folder: Path, name: str, *arguments: str) -> Path:
    """Record the script with these arguments, and return the folder."""
    script = folder / "score.py"
    script.write_text(SCRIPT, encoding="utf-8")
    assert main(["score", "--out", str(folder / name), "--", str(script), *arguments]) == 0
    return folder / name


def test_recordings_are_compared_by_weight_and_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The trainer's weights were cast as the engine casts them, before they were digested."""
    trainer = recorded(tmp_path, "trainer", "alone", "float32")
    engine = recorded(tmp_path, "engine", "decode", "bfloat16")
    stale = recorded(tmp_path, "stale", "decode", "bfloat16", "stale")
    bound = ["--criterion", "logprob=close(rtol=0, atol=0.1)"]
    assert main(["compare", str(engine), str(trainer), *bound]) == 0
    assert "rollout_probs_diff_max" in capsys.readouterr().out
    assert main(["compare", str(engine), str(trainer)]) == 1
    assert "embed_tokens computes in bfloat16, not in float32" in capsys.readouterr().out
    assert main(["compare", str(stale), str(trainer), *bound]) == 1
    words = "weight layers.1.mlp.down_proj has another digest than that of the reference"
    assert words in capsys.readouterr().out


def test_digests_that_an_engine_gives_are_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are compared with a trainer's tensors after the cast, and none is passed over."""
    trainer = recorded(tmp_path, "trainer", "alone", "float32")
    engine = recorded(tmp_path, "engine", "alone", "bfloat16", "digests")
    stale = recorded(tmp_path, "stale", "alone", "bfloat16", "digests", "stale")
    bound = ["--criterion", "logprob=close(rtol=0, atol=0.1)"]
    assert main(["compare", str(engine), str(trainer), *bound]) == 0
    assert main(["compare", str(stale), str(trainer), *bound]) == 1
    assert "weight layers.1.mlp.down_proj has another digest" in capsys.readouterr().out


def test_choices_of_routers_are_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also a pass says which tokens took another expert, by which margin."""
    trainer = recorded(tmp_path, "trainer", "alone", "float32", "mixture")
    engine = recorded(tmp_path, "engine", "alone", "float32", "mixture", "tilted")
    bound = ["--criterion", "logprob=close(rtol=0, atol=0.2)"]
    assert main(["compare", str(engine), str(trainer), *bound]) == 0
    out = capsys.readouterr().out
    assert "decision: token 3 of sequence 1 goes to experts 1, 3 in layers.1.mlp.gate" in out
    assert "tokens that took another expert, of 34: layers.1.mlp.gate 2" in out


def test_a_text_that_is_no_digest_is_refused() -> None:
    """An engine's digest without dtype and shape could not be told from another tensor's."""
    with pytest.raises(ValueError, match="dtype, shape and digest of x"):
        digested_elsewhere("weight", "x", "0123456789abcdef" * 2)


def test_a_script_that_shows_no_scores_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty recording would agree with any other."""
    script = tmp_path / "train.py"
    script.write_text("print('no scores')\n", encoding="utf-8")
    with pytest.raises(SystemExit):
        main(["score", "--out", str(tmp_path / "out"), "--", str(script)])
    assert "call show_scores of pytest_precision.rollout in it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("file", "a folder that can be made but got --out=file"),
        ("full", "a new or empty folder but got --out=full, which has x"),
    ],
)
def test_a_folder_that_is_taken_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    folder: str,
    words: str,
) -> None:
    """As `record` does, and before the script runs."""
    monkeypatch.chdir(tmp_path)
    Path("score.py").write_text("raise SystemExit(3)\n", encoding="utf-8")
    Path("file").touch()
    Path("full").mkdir()
    Path("full", "x").touch()
    with pytest.raises(SystemExit) as ended:
        main(["score", "--out", folder, "--", "score.py"])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
