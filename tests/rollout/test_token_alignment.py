"""Forwards in other batches are held to each other token by token."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_forward_recording import recorded

from pytest_precision.__main__ import main

SCORING = """
import sys
import torch
from tiny_decoder import sequences, tiny
from pytest_precision.rollout.ways import Caller, way_of

way, *defects = sys.argv[1:]
model = tiny(torch.float32)
ids = sequences()
ids[1] = torch.cat([ids[0][:8], ids[1]])
if "weight" in defects:
    model.layers[1].mlp.down_proj.weight.data[3] *= 1.5
if "positions" in defects:
    model.rotary_emb.register_forward_pre_hook(lambda _, given: (given[0] + (given[0] > 5),))
if "ids" in defects:
    ids[2][5] = 63 - ids[2][5]
if "fewer" in defects:
    ids.pop()
with torch.no_grad():
    way_of(way)(Caller(model), ids)
    if "update" in defects:
        model.norm.weight.data[0] += 0.5
        way_of(way)(Caller(model), ids)
"""


def compared(
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    ours: list[str],
    theirs: list[str],
    within: str = "close(rtol=0, atol=1e-4)",
) -> tuple[int, str]:
    """The exit status and the words of a comparison of the forwards of two ways."""
    options = ("--honest-ways",) if within != "close(rtol=0, atol=1e-4)" else ()
    sides = [
        recorded(folder, f"{len([*folder.iterdir()])}", SCORING, *side, steps="99", options=more)
        for side, more in ((ours, ()), (theirs, options))
    ]
    capsys.readouterr()
    status = main(["compare", *sides, "--criterion", f"logprob={within}", "-v"])
    shown = capsys.readouterr()
    return status, shown.out + shown.err


@pytest.mark.parametrize("way", ["left", "cu_seqlens", "decode4", "prefix8"])
def test_each_way_is_found_in_forwards_of_whole_sequences(
    way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All 39 scored tokens of three sequences, and a wrong position names its token."""
    status, words = compared(capsys, tmp_path, [way], ["alone"])
    assert status == 0, words
    assert "train_rollout_logprob_abs_diff" in words
    assert "sequences of the reference are not" not in words
    status, words = compared(capsys, tmp_path, [way, "positions"], ["alone"])
    assert status == 1
    assert "first at rotary_emb, token 6; weights agree" in words


def test_a_sequence_is_decoded_where_the_other_side_packs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A weight that differs is named before the tokens that it changes."""
    status, words = compared(capsys, tmp_path, ["decode4", "weight"], ["packed"])
    assert status == 1
    assert "weight layers.1.mlp.down_proj" in words


def test_other_ids_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sequence that goes on otherwise is red by its token, or by what made it go on so."""
    status, words = compared(capsys, tmp_path, ["batch", "ids"], ["alone"])
    assert status == 1
    parted = "position 5 of sequence 2 is token 13 in the candidate, 50 in the reference"
    assert f"{parted}; all before agrees" in words
    status, words = compared(capsys, tmp_path, ["batch", "ids", "positions"], ["alone"])
    assert status == 1
    assert "first at rotary_emb, token 6; weights agree" in words
    assert parted in words
    status, words = compared(capsys, tmp_path, ["batch", "ids", "weight"], ["alone"])
    assert status == 1
    assert "weight layers.1.mlp.down_proj" in words
    assert parted in words


def test_a_side_that_goes_on_with_old_weights_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Forwards with the same weights belong together, on each side in their order."""
    assert compared(capsys, tmp_path, ["left", "update"], ["alone", "update"])[0] == 0
    status, words = compared(capsys, tmp_path, ["left"], ["decode4", "update"])
    assert status == 1
    assert "stale: norm holds the weights 1 of the reference" in words
    assert "with the weights 2 of 2" in words


def test_sequences_that_are_not_compared_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of three is missing."""
    status, words = compared(capsys, tmp_path, ["left", "fewer"], ["alone"])
    assert status == 0
    assert "1 of 3 sequences of the reference are not among those of the candidate" in words


@pytest.mark.parametrize("way", ["packed", "alone"])
def test_noise_is_measured_of_the_first_forward_that_scores(
    way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong position is beyond it, and a bound that a wrong weight satisfies proves nothing."""
    assert compared(capsys, tmp_path, ["left"], [way], "noise()")[0] == 0
    status, words = compared(capsys, tmp_path, ["left", "positions"], [way], "noise()")
    assert status == 1
    assert "6 times the largest of honest ways: batch " in words
    assert "first at rotary_emb, token 6; weights agree" in words
    status, words = compared(capsys, tmp_path, ["left"], [way], "close(rtol=0, atol=100)")
    assert status == 1
    assert "so loose that it proves nothing: with the rows of layers" in words


def test_forwards_that_score_no_whole_sequence_have_no_noise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said where it is asked for, as it is where nothing was measured."""
    text = SCORING.replace("way_of(way)(Caller(model), ids)", "model.embed_tokens(ids[0])")
    with pytest.raises(SystemExit):
        recorded(tmp_path, "a", text, "alone", options=("--honest-ways",))
    assert "expected a forward of whole sequences with their logits" in capsys.readouterr().err
    sides = [recorded(tmp_path, name, SCORING, "alone") for name in "bc"]
    with pytest.raises(SystemExit):
        main(["compare", *sides, "--criterion", "logprob=noise()"])
    assert "record --forward --honest-ways" in capsys.readouterr().err
