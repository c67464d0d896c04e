"""A training script that knows nothing of a recorder; `loops.py` measures what recording adds.

Arguments: millions of parameters, tokens in a batch, steps.
"""

import sys

import torch
from torch import nn

WIDTH = 1024

millions, tokens, steps = map(int, sys.argv[1:])
layers = max(1, millions * 10**6 // (WIDTH * (WIDTH + 1)))
blocks = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(layers))
model = nn.Sequential(*blocks)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(steps):
    model(torch.randn(tokens, WIDTH)).square().mean().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
