"""Print the table of docs/evidence/rollouts.md: what a mean says of each planted defect.

python ci/bench/rollouts.py            the table
python ci/bench/rollouts.py --cost     scoring with digests of all modules against bare forwards
"""

import sys
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "rollout"))

from honest_rollouts import HONEST
from planted_rollouts import PLANTED
from tiny_decoder import Block, TinyDecoder, sequences

from pytest_precision import noise
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.rollout import Scorer
from pytest_precision.rollout.expected_weights import SyncTerms
from pytest_precision.rollout.score_check import score_check

ROUNDED = 1e-5
"""Mean difference below which correct engines share a row: they only sum in another order."""


class Row(NamedTuple):
    """What comes of one engine.

    Attributes:
        name: of the function that makes it, in words.
        mean: absolute difference of log-probabilities.
        k3: estimate of the KL divergence.
        verdict: the first line of the verdict.
    """

    name: str
    mean: float
    k3: float
    verdict: str


def row_of(make):
    """Score with an engine and the trainer, and return what comes of it."""
    side = make()
    declared = SyncTerms(**dict(side.declared))
    criteria = Criteria.of({"logprob": noise()})
    ruling, figures = score_check(
        side.candidate, side.reference, sequences(), (), criteria, declared
    )
    (way,) = figures["rollout"]["ways"].values()
    statistics = way["statistics"]
    name = make.__name__ if hasattr(make, "__name__") else partial_words(make)
    mean, k3 = statistics["train_rollout_logprob_abs_diff"], statistics["k3_kl"]
    return Row(name.replace("_", " "), mean, k3, ruling.reason or "pass")


def joined(rows):
    """Return one row of those that pass, with the largest figures of them."""
    names = ", ".join(row.name for row in rows)
    return Row(names, max(row.mean for row in rows), max(row.k3 for row in rows), "pass")


def partial_words(make):
    """Return a function with its arguments in words, such as `scored by left mixture`."""
    arguments = (str(argument).removeprefix("torch.") for argument in make.args)
    return " ".join([make.func.__name__, *arguments, *make.keywords])


def seconds(call, runs=3):
    """Return the seconds of processor of a call, the least of some: others share the machine."""
    times = []
    for _ in range(runs):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def cost():
    """Score 8 sequences of 512 tokens by 4 layers, with and without digests of module outputs."""
    torch.set_num_threads(1)
    model = TinyDecoder()
    width = 256
    model.layers = torch.nn.ModuleList(Block(width, False) for _ in range(4))
    model.embed_tokens = torch.nn.Embedding(64, width)
    model.rotary_emb = type(model.rotary_emb)(width // 4)
    model.norm = type(model.norm)(width)
    model.lm_head = torch.nn.Linear(width, 64, bias=False)
    ids = [torch.randint(0, 64, (512,)) for _ in range(8)]
    with torch.no_grad():
        bare = seconds(lambda: [model(row[None]) for row in ids])
    scored = seconds(partial(Scorer(model=model).scores, ids))
    print(f"bare {bare:.3f} s, with digests {scored:.3f} s: {scored / bare:.2f} times")


def main():
    if "--cost" in sys.argv:
        cost()
        return
    print(
        "| what the engine does or holds | mean difference | k3 KL | verdict |",
        "| --- | --- | --- | --- |",
        sep="\n",
    )
    honest = [row_of(make) for make in HONEST]
    alike = [row for row in honest if row.verdict == "pass" and row.mean < ROUNDED]
    others = [row for row in honest if row not in alike]
    for row in (joined(alike), *others, *map(row_of, PLANTED)):
        print(f"| {row.name} | {row.mean:.1e} | {row.k3:.1e} | {row.verdict} |")


main()
