"""The first line about two scripts that differ names the cause, and not what comes of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_precision.__main__ import main

RecordFile = Callable[..., Path]
Output = pytest.CaptureFixture[str]

MODEL = """
import sys
import torch
from torch import nn

own = sys.argv[1]
torch.manual_seed(0)
data = torch.Generator().manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 6))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
"""

FORGETS_TRAIN = """
for step in range(5):
    model(torch.randn(12, 8, generator=data)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 1:
        model.eval()
        with torch.no_grad():
            model(torch.ones(3, 8))
        model.train(own != "planted")
"""

ACCUMULATES = """
number = 4 if own == "planted" else 2
for step in range(3):
    for part in torch.randn(12, 8, generator=data).chunk(number):
        (model(part).square().mean() / number).backward()
    optimizer.step()
    optimizer.zero_grad()
"""

STEPS_TWICE = """
for step in range(3):
    model(torch.randn(12, 8)).square().mean().backward()
    for _ in range(2 if step >= FIRST and own == TWICE else 1):
        optimizer.step()
    optimizer.zero_grad()
"""

OTHER_BACKWARD = """
weights = [*model.parameters()]
call = CALL
for step in range(3):
    loss = call(torch.randn(12, 8, generator=data)).square().mean()
    if step == 1 and own == "planted":
        for weight, gradient in zip(weights, torch.autograd.grad(loss, weights)):
            weight.grad = gradient
    else:
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

SCALED = """
scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
for step in range(3):
    scaler.scale(model(torch.randn(12, 8, generator=data)).square().mean()).backward()
    if UNSCALED:
        scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""

IN_TURN = """
from pytest_precision import record

critic = nn.Linear(6, 1)
second = torch.optim.AdamW(critic.parameters(), lr=0.01)
record({"model": model, "critic": critic})

def train(one):
    judged = critic(model(torch.randn(12 if one is optimizer else 9, 8))).mean()
    judged.backward()
    one.step()
    optimizer.zero_grad()
    second.zero_grad()

for turn in PLANTED if own == "planted" else "mcmcmc":
    train(optimizer if turn == "m" else second)
"""


@pytest.mark.parametrize(
    ("loop", "words"),
    [
        (FORGETS_TRAIN, "flag differs at step 2 after optimizer_step: training is False on rank 0"),
        (ACCUMULATES, "loss differs at step 1 after forward_backward: 4 microbatches here, 2 in"),
        (
            STEPS_TWICE.replace("TWICE", "'planted'").replace("FIRST", "0"),
            "the candidate's optimizer steps again after step 1, without a forward before it; "
            "losses of step 2: 0 here, 1 in the reference",
        ),
        (
            STEPS_TWICE.replace("TWICE", "'plain'").replace("FIRST", "1"),
            "the reference's optimizer steps again after step 2, without a forward before it; "
            "losses of step 3: 1 here, 0 in the reference",
        ),
        *(
            (
                OTHER_BACKWARD.replace("CALL", call),
                "loss of microbatch0 is missing from the candidate at step 2 after "
                "forward_backward; the reference has it",
            )
            for call in (
                "model",
                "lambda x: (x @ weights[0].T + weights[1]) @ weights[2].T + weights[3]",
            )
        ),
        (
            SCALED.replace("UNSCALED", "own != 'planted'").replace("SCALE", "2.0**22"),
            "reduced_grad differs at step 1 after reduce_grads, 2^22 times the reference, "
            "which is the loss scale in each",
        ),
        (
            SCALED.replace("UNSCALED", "True").replace("SCALE", "2.0**(22 - 6 * (own == 'plain'))"),
            "loss_scale differs before the first step, 64 times the reference: "
            "scale is 2^22 on rank 0, not 2^16",
        ),
        (
            IN_TURN.replace("PLANTED", "'mccmcm'"),
            "other weights are updated at step 3: critic.weight and 1 more here, model.0.weight "
            "and 3 more in the reference; step 1 agreed",
        ),
        (
            IN_TURN.replace("PLANTED", "'cmcmcm'"),
            "other weights are updated in the first step: critic.weight and 1 more here, "
            "model.0.weight and 3 more in the reference",
        ),
    ],
    ids=[
        "eval",
        "microbatches",
        "extra",
        "left out",
        "other backward",
        "no module called",
        "unscaled",
        "loss scale",
        "later turn",
        "first turn",
    ],
)
def test_the_first_line_names_the_cause(
    record: RecordFile, in_folder: Path, capsys: Output, loop: str, words: str
) -> None:
    """Whatever else differs in the same step is told below it."""
    (in_folder / "loop.py").write_text(MODEL + loop)
    for name in ("plain", "planted"):
        record(name, "--steps", "3", script=("loop.py", name))
    assert main(["compare", "planted", "plain"]) == 1
    assert capsys.readouterr().out.startswith(f"planted against plain: {words}")
