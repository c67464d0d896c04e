"""Scripts and commands that show scores are sides of `parity.score`, on ranks of their own."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_decoder import sequences, tiny

from pytest_precision import Parity, ParityError, close, command, script
from pytest_precision.rollout import Scorer, show_scores

MATRIX = pytest.mark.precision_matrix(precision=["fp32"], sequence=["train1"])

FILE = """
import sys
import torch
sys.path.insert(0, sys.argv[1])
from tiny_decoder import sequences, tiny
from pytest_precision.rollout import Scorer, show_scores

model = tiny(torch.float32)
if sys.argv[3:]:
    model.norm.weight.data[0] += 0.5
show_scores(Scorer(model=model, way=sys.argv[2]), sequences=sequences())
"""


@script
def engine(cell: Any, record: Any, way: str = "left", *, stale: bool = False) -> None:
    """Score by a model in one way."""
    torch.set_num_threads(1)
    model = tiny(torch.float32)
    if stale:
        model.norm.weight.data[0] += 0.5
    with record():
        show_scores(Scorer(model=model, way=way), sequences=sequences())


trainer = partial(engine, way="alone")
stale = partial(engine, stale=True)
BOUND = {"logprob": close(rtol=0, atol=1e-4)}


@MATRIX
def test_scripts_are_compared(parity: Parity) -> None:
    """A weight that one of them holds is named; the figures are those of any other side."""
    verdict = parity.score(engine, trainer, criterion=BOUND)
    assert verdict.rollout["ways"]["recorded"]["tokens"] == 31
    with pytest.raises(ParityError, match="weight norm"):
        parity.score(stale, trainer, criterion=BOUND)


@MATRIX
def test_commands_are_compared(parity: Parity, tmp_path: Path) -> None:
    """Each file runs in processes of its own, as torchrun starts them."""
    file = tmp_path / "score.py"
    file.write_text(FILE, encoding="utf-8")
    run = partial(command, file, str(Path(__file__).parent))
    parity.score(run("left"), run("alone"), criterion=BOUND)
    with pytest.raises(ParityError, match="weight norm"):
        parity.score(run("left", "stale"), run("alone"), criterion=BOUND)


@MATRIX
def test_what_a_script_says_itself_is_refused_beside_it(parity: Parity) -> None:
    """Otherwise it would be passed over without a word; sides of this process need sequences."""
    parity.score(tiny(), tiny(), sequences=sequences())
    with pytest.raises(TypeError, match="sequences of ids"):
        parity.score(tiny(), tiny())
    with pytest.raises(TypeError, match="no cast beside scripts"):
        parity.score(engine, trainer, cast="bfloat16")
    with pytest.raises(TypeError, match="reference to be a script"):
        parity.score(engine, tiny())
