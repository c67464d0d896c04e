"""What every built-in workload must have, as functions that yield what is wrong with a workload.

Each property hides a family of defects where it is missing, so each is a test of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import gcd, isfinite, log

import torch
from torch.nn import functional as F
from workload_measures import (
    CELL,
    LONG,
    STEPS,
    auxiliary,
    digest,
    loss_and_grads,
    of_steps,
    parameters_in,
    poisoned_memory,
    seeded,
    trained,
)

from pytest_precision import Workload
from pytest_precision.workloads.batches import IGNORED, QUIET_STEP


def odd_sizes(workload: Workload) -> Iterator[str]:
    """No size is a multiple of 2 or 3 ranks, of a block of 16 or 32, or of a bucket."""
    model = seeded(workload)
    for name, parameter in model.named_parameters():
        if any(gcd(size, 6) != 1 for size in parameter.shape):
            yield f"{name} has shape {tuple(parameter.shape)}"
    groups = [sum(p.numel() for p in g["params"]) for g in workload.groups(model)]
    if gcd(sum(groups), 6) != 1:  # else one group at least is no multiple either
        yield f"{sum(groups)} elements in a flat buffer need no padding for 2 or 3 ranks"
    yield from (f"a group of {total} elements fills blocks" for total in groups if total % 16 == 0)


def empty_shard(workload: Workload) -> Iterator[str]:
    """Some parameter has too few rows for 3 ranks."""
    if min(len(p) for p in seeded(workload).parameters()) > 2:
        yield "each of 3 ranks has a row of every parameter"


def odd_vectors(workload: Workload) -> Iterator[str]:
    """1-D parameters are neither 0 nor 1 at the start."""
    vectors = {n: p for n, p in seeded(workload).named_parameters() if p.dim() == 1}
    if not vectors:
        yield "there are no 1-D parameters"
    for name, vector in vectors.items():
        if bool(((vector == 0) | (vector == 1)).any()):
            yield f"{name} has a 0 or a 1"


def bf16_values(workload: Workload) -> Iterator[str]:
    """Initial values are fp32 numbers; those of one trained tensor are not exact in bf16."""
    between = []
    for name, parameter in seeded(workload).named_parameters():
        if parameter.dtype != torch.float32:
            yield f"{name} is in {parameter.dtype}"
        if parameter.requires_grad and not torch.equal(parameter, parameter.bfloat16().float()):
            between.append(name)
    if len(between) != 1:
        yield f"not exact: {between}"


def seeded_by_caller(workload: Workload) -> Iterator[str]:
    """Initial values follow torch's global generator."""
    first, again, other = (seeded(workload, seed).parameters() for seed in (0, 0, 1))
    for a, b, c in zip(first, again, other, strict=True):
        if not torch.equal(a, b) or torch.equal(a, c):
            yield f"a parameter of shape {tuple(a.shape)} does not follow the seed"


def shared_microbatches(workload: Workload) -> Iterator[str]:
    """As many a step as all ranks can deal out without remainder; in one step, one each."""
    for ranks in (1, 2, 3, 4, 8):
        cell = CELL.replace(world_size=ranks)
        numbers = [len(workload.microbatches(cell, step)) for step in range(5)]
        if sorted(numbers) != sorted([ranks, *[cell.microbatches] * 4]) or numbers[0] == ranks:
            yield f"{numbers} microbatches on {ranks} ranks"


def uneven_tokens(workload: Workload) -> Iterator[str]:
    """Token counts differ between microbatches, between ranks and between steps."""
    totals = []
    for step, microbatches in of_steps(workload):
        tokens = [workload.tokens(microbatch) for microbatch in microbatches]
        totals.append(sum(tokens))
        if len(set(tokens)) < len(tokens):
            yield f"step {step}: microbatches of {tokens} tokens"
        for world_size in (2, 3, 4):
            ranks = [sum(tokens[rank::world_size]) for rank in range(world_size)]
            if len(set(ranks)) == 1:
                yield f"step {step}: ranks of {ranks} tokens"
    if len(set(totals)) < 2:
        yield f"every step has {totals[0]} tokens"


def ragged(workload: Workload) -> Iterator[str]:
    """Lengths differ between microbatches and within them, and prompts do not count."""
    for step, microbatches in of_steps(workload):
        counts = [microbatch.targets != IGNORED for microbatch in microbatches]
        if len(counts) == 1:  # what has only one cannot have several lengths
            continue
        if len({c.shape[1] for c in counts}) < 3 or len({len(c) for c in counts}) < 2:
            yield f"step {step}: shapes are {[tuple(c.shape) for c in counts]}"
        if all(bool(c[:, -1].all()) for c in counts):
            yield f"step {step}: no row is shorter than another"
        if all(bool(c[:, 0].all()) for c in counts):
            yield f"step {step}: no row has a prompt"


def nonzero_padding(workload: Workload) -> Iterator[str]:
    """Inputs that do not count look like those that do."""
    for step, microbatches in of_steps(workload):
        ignored = torch.cat([m.inputs[m.targets == IGNORED].flatten() for m in microbatches])
        if ignored.count_nonzero() < 0.9 * len(ignored):
            yield f"step {step}: padding is zero"


def fresh_data(workload: Workload) -> Iterator[str]:
    """No microbatch is like another, of any step."""
    seen: dict[bytes, str] = {}
    for step, microbatches in of_steps(workload):
        for index, microbatch in enumerate(microbatches):
            content = digest(microbatch.inputs, microbatch.targets)
            place = f"step {step}, microbatch {index}"
            if content in seen:
                yield f"{place} is {seen[content]} again"
            seen[content] = place


def own_generator(workload: Workload) -> Iterator[str]:
    """Data neither reads nor moves torch's global generator."""
    with torch.random.fork_rng():
        for step in range(STEPS + 1):
            contents = set()
            for seed in (0, 1):
                torch.manual_seed(seed)
                before = torch.get_rng_state()
                microbatches = workload.microbatches(CELL, step)
                contents.add(b"".join(digest(m.inputs, m.targets) for m in microbatches))
                if not torch.equal(before, torch.get_rng_state()):
                    yield f"step {step} moves the global generator"
            if len(contents) > 1:
                yield f"step {step} reads the global generator"


def token_sum(workload: Workload) -> Iterator[str]:
    """The loss is the fp32 sum over the counted tokens, also for logits in bf16."""
    for dtype in (torch.float32, torch.bfloat16):
        model = seeded(workload).to(dtype)
        for microbatch in workload.microbatches(CELL, 1):
            counts = microbatch.targets != IGNORED
            logits = model(microbatch.inputs)[counts].float()
            expected = F.cross_entropy(logits, microbatch.targets[counts], reduction="sum")
            loss, tokens = workload.loss(model, microbatch)
            expected = expected + auxiliary(model, counts)
            if loss.dtype != torch.float32 or loss.dim() > 0:
                yield f"the loss of a {dtype} model is {loss.dtype} of shape {tuple(loss.shape)}"
            if not torch.isfinite(loss) or not torch.allclose(loss.float(), expected):
                yield f"the loss of a {dtype} model is {loss}, its tokens' sum is {expected}"
            if not tokens == workload.tokens(microbatch) == int(counts.sum()):
                yield f"loss() counts {tokens}, tokens() {workload.tokens(microbatch)}"


def complete_gradients(workload: Workload) -> Iterator[str]:
    """Every parameter that is trained takes part in the backward of every microbatch."""
    model = seeded(workload)
    for step, microbatches in of_steps(workload, last=2):
        for index, microbatch in enumerate(microbatches):
            model.zero_grad()
            workload.loss(model, microbatch)[0].backward()
            for name, p in model.named_parameters():
                if (p.grad is None) == p.requires_grad:
                    yield f"step {step}, microbatch {index}: {name}"


def same_bits_in_company(workload: Workload) -> Iterator[str]:
    """A microbatch's bits do not depend on what was computed before it, nor on its mode."""
    for dtype in (torch.float32, torch.bfloat16):
        microbatches = workload.microbatches(CELL, 1)
        model = seeded(workload).to(dtype)
        forwards = [loss_and_grads(workload, model, m) for m in microbatches]
        model.eval()
        backwards = [loss_and_grads(workload, model, m) for m in reversed(microbatches)]
        if forwards != backwards[::-1]:
            yield f"{dtype}: another order gives other bits"


def poison_proof(workload: Workload) -> Iterator[str]:
    """Deterministic algorithms do, and give the same numbers where fresh memory is NaN."""
    for dtype in (torch.float32, torch.bfloat16):
        model = seeded(workload).to(dtype)
        for index, microbatch in enumerate(workload.microbatches(CELL, 1)):
            plain = loss_and_grads(workload, model, microbatch)
            with poisoned_memory():
                poisoned = loss_and_grads(workload, seeded(workload).to(dtype), microbatch)
            if plain != poisoned:
                yield f"{dtype}, microbatch {index}: reads memory that nobody wrote"


def functional(workload: Workload) -> Iterator[str]:
    """Called with bf16 copies of its parameters, the model computes what a bf16 model does."""
    model = seeded(workload)
    copies = {name: p.detach().bfloat16() for name, p in model.named_parameters()}
    cast = parameters_in(torch.bfloat16, seeded(workload))  # buffers keep their dtype
    for microbatch in workload.microbatches(CELL, 1):
        logits = torch.func.functional_call(model, copies, (microbatch.inputs,))
        if logits.dtype != torch.bfloat16 or not torch.equal(logits, cast(microbatch.inputs)):
            yield f"logits in {logits.dtype} are not those of the bf16 model"


def two_groups(workload: Workload) -> Iterator[str]:
    """What is trained is in one of several groups, each with its own lr and weight decay."""
    model = seeded(workload)
    groups = workload.groups(model)
    for key in ("lr", "weight_decay"):
        values = [group[key] for group in groups]
        if len(set(values)) < 2:
            yield f"{key} of the groups: {values}"
    grouped = [id(p) for group in groups for p in group["params"]]
    if sorted(grouped) != sorted(id(p) for p in model.parameters() if p.requires_grad):
        yield "some parameter that is trained is in no group, or in two, or a frozen one is in one"


def partly_frozen(workload: Workload) -> Iterator[str]:
    """Some parameters are not trained, and gradients pass through the modules that hold them."""
    frozen = {name for name, p in seeded(workload).named_parameters() if not p.requires_grad}
    if not frozen:
        yield "every parameter is trained"


def clipping_bites(workload: Workload) -> Iterator[str]:
    """The norm is well above `max_norm` in every step but one, in which it is well below."""
    for step, trained_step in enumerate(trained(type(workload), LONG), 1):
        limit = workload.max_norm
        if limit is None or (trained_step.norm < 4 * limit) != (step == QUIET_STEP):
            yield f"step {step}: a norm of {trained_step.norm}, clipped to {limit}"
        elif step == QUIET_STEP and trained_step.norm > limit / 4:
            yield f"step {step}: a norm of {trained_step.norm}, almost clipped to {limit}"


def countless(workload: Workload) -> Iterator[str]:
    """In one step, on any number of ranks, one of several microbatches counts no token."""
    for ranks in (1, 2, 3, 4, 8):
        cell = CELL.replace(world_size=ranks)
        counted = [[*map(workload.tokens, workload.microbatches(cell, s))] for s in range(1, 9)]
        if [0 in tokens and len(tokens) > ranks for tokens in counted].count(True) != 1:
            yield f"tokens of microbatches on {ranks} ranks: {counted}"


def moving_rate(workload: Workload, steps: int = 220) -> Iterator[str]:
    """The learning rate rises, then falls, and is another one in each of many steps."""
    model = seeded(workload)
    optimizer = torch.optim.SGD(workload.groups(model))
    full = optimizer.param_groups[0]["lr"]
    scheduler = workload.scheduler(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    peak = rates.index(max(rates))
    if not 0 < peak < 4 or rates != sorted(rates[:peak]) + sorted(rates[peak:], reverse=True):
        yield f"the rate does not warm up and decay: {rates[:STEPS]}"
    yield from (
        f"steps {step} and {step + 1} have almost the same rate {a}"
        for step, (a, b) in enumerate(pairwise(rates), 1)
        if abs(a - b) <= 1e-5 * full
    )
    if rates[-1] < full / 100:
        yield f"the rate has gone to {rates[-1]}"


def moving_weights(workload: Workload) -> Iterator[str]:
    """In each step of a short run what is trained moves in fp32, and most elements in bf16."""
    for step, trained_step in enumerate(trained(type(workload), LONG)[:STEPS], 1):
        yield from (f"step {step}: {name} does not move" for name in trained_step.unmoved)
    for step, trained_step in enumerate(trained(type(workload), STEPS, torch.bfloat16), 1):
        if trained_step.moved_share < 0.5:
            yield f"bf16, step {step}: {trained_step.moved_share:.0%} of the elements move"


def learnable(workload: Workload) -> Iterator[str]:
    """Two dozen steps of AdamW bring the loss well below that of a uniform guess."""
    classes = seeded(workload)(workload.microbatches(CELL, 1)[0].inputs).shape[-1]
    losses = [step.loss for step in trained(type(workload), LONG)]
    last = sum(losses[-5:]) / 5
    if not isfinite(last) or last > 0.7 * log(classes) or last > 0.7 * losses[0]:
        yield f"the loss goes from {losses[0]} to {last}; a guess costs {log(classes)}"


PROPERTIES = [
    odd_sizes,
    empty_shard,
    odd_vectors,
    bf16_values,
    seeded_by_caller,
    shared_microbatches,
    uneven_tokens,
    ragged,
    nonzero_padding,
    fresh_data,
    own_generator,
    token_sum,
    complete_gradients,
    same_bits_in_company,
    poison_proof,
    functional,
    two_groups,
    partly_frozen,
    clipping_bites,
    countless,
    moving_rate,
    moving_weights,
    learnable,
]
