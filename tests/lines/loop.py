"""A training loop with one wrong line, by the name of which it is started, in one precision."""

from __future__ import annotations

import sys

import torch
from torch import nn

WRONG = sys.argv[1]
PRECISION = sys.argv[2] if len(sys.argv) > 2 else "fp32"
DTYPE = torch.bfloat16 if PRECISION == "bf16" else torch.float32

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 4))
model.to(DTYPE)
autocast = torch.autocast("cpu", torch.bfloat16, enabled=PRECISION == "autocast")
betas = (0.9, 0.99) if WRONG == "beta" else (0.9, 0.95)
fused = WRONG == "fused"
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=betas, fused=fused)  # beta
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
draws = torch.Generator().manual_seed(6 if WRONG == "seed" else 5)


def evaluate() -> None:
    model.train(WRONG == "mode")  # mode
    with torch.no_grad():
        model(torch.ones(2, 16, dtype=DTYPE))
    model.train()


for step in range(4):
    optimizer.zero_grad()
    for number in range(2):
        inputs = torch.randn(8, 16, generator=draws)  # seed
        labels = torch.randint(4, (8,), generator=draws)
        if WRONG == "batch" and step == 2:
            inputs = inputs + 1e-3 * labels[:, None]  # batch
        with autocast:
            outputs = model(inputs.to(DTYPE))
        loss = nn.functional.cross_entropy(outputs.float(), labels)
        if WRONG != "divide":
            loss = loss / 2  # divide
        if WRONG == "wipe" and number == 1:
            optimizer.zero_grad()  # wipe
        loss.backward()
    if WRONG == "halve":
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)  # halve
    norm = 100.0 if WRONG == "clip" else 0.3
    nn.utils.clip_grad_norm_(model.parameters(), norm)  # clip
    optimizer.step()  # fused
    if WRONG == "round" and step == 1:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(parameter.bfloat16())  # round
    scheduler.step()
    if WRONG == "twice" and step == 1:
        scheduler.step()  # twice
    if step == 1:
        evaluate()
