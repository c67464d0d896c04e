"""What logging the operations of a step costs: time against the bare step, and bytes an operation.

    python ci/bench/lines.py [--layers N] [--repeats N] [--sketches]

A GPT-like model of about 10 million parameters makes some 3,000 operations in a step, with AdamW in
for-loop form and clipped gradients. A bare step and a logged one alternate, and medians of their
processor times are compared, which what else runs on the machine does not change. With --sketches,
a log also has what tells relative errors, as that of a recording does.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from pytest_precision.recorders.lines.operation_log import OperationLogger
from pytest_precision.trace.moment import Wanted
from pytest_precision.trace.operation_files import path_of, write_operations

WIDTH = 224
HEADS = 4
TOKENS = 128
BATCH = 8
VOCABULARY = 2048


class Block(nn.Module):
    """Attention and a perceptron, as a user writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(hidden)).chunk(3, -1)
        q, k, v = (
            projection.view(BATCH, TOKENS, HEADS, -1).transpose(1, 2).contiguous()
            for projection in (q, k, v)
        )
        weights = (q @ k.transpose(2, 3) / (WIDTH / HEADS) ** 0.5).softmax(-1)
        mixed = (weights @ v).transpose(1, 2).reshape(BATCH, TOKENS, WIDTH)
        hidden = hidden + self.out(mixed)
        return hidden + self.down(nn.functional.gelu(self.up(self.norm2(hidden))))


def step_of(layers: int) -> tuple[Callable[[], None], int]:
    """Return a train step, and the number of parameters."""
    torch.manual_seed(0)
    body = nn.Sequential(*(Block() for _ in range(layers)))
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), body, nn.Linear(WIDTH, VOCABULARY))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    tokens = torch.randint(VOCABULARY, (BATCH, TOKENS))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        optimizer.step()

    return step, sum(parameter.numel() for parameter in model.parameters())


def timed(call: Callable[[], object]) -> float:
    """Return the seconds of processor time that a call takes."""
    start = time.process_time()
    call()
    return time.process_time() - start


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sketches", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    step, parameters = step_of(args.layers)
    step()
    log_request = Wanted(0, 1, sketches=args.sketches)
    bare = []
    logged = []
    logger = OperationLogger(log_request)
    for _ in range(args.repeats):
        bare.append(timed(step))
        logger = OperationLogger(log_request)
        with logger.installed(), logger.on():
            logged.append(timed(step))
    number = len(logger.log.operations)
    with tempfile.TemporaryDirectory() as folder:
        writing = timed(lambda: write_operations(logger.log, Path(folder), 0))
        size = path_of(Path(folder), 0).stat().st_size
    before, after = statistics.median(bare), statistics.median(logged)
    print(f"{parameters / 1e6:.1f} million parameters, {number} operations in a step")
    print(f"bare {before:.2f} s, logged {after:.2f} s: {after / before:.2f} times")
    print(f"{size / number:.0f} bytes an operation, written in {writing:.2f} s")


if __name__ == "__main__":
    main()
