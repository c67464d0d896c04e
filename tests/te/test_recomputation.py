"""Activations that Transformer Engine's layers compute again in backward, in delayed scaling."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import planted_recomputation as planted
import pytest
import te_wheel

from pytest_precision import Cell, Parity, layouts, workloads

pytestmark = [pytest.mark.slow, te_wheel.NEEDED]

ParityIn = Callable[[Cell], Parity]
OnARank = Callable[..., list[object]]

GPT = partial(workloads.gpt, heads=2, head_width=16, depth=2, fixed_temperature=True)


@pytest.mark.parametrize(("primary", "reentrant"), [("quantized", True), ("bf16", False)])
def test_recomputed_blocks_are_those_that_keep_their_activations(
    parity_in: ParityIn, primary: str, reentrant: bool
) -> None:
    """Where `autocast` is around them, scales and amaxes are those of the first forward."""
    axes = (("reentrant", reentrant),)
    cell = Cell("fp8_delayed", primary, sequence="train1", extra=axes)
    parity_in(cell).check(planted.recomputing, layouts.te_blocks, workload=GPT)


def test_autocast_in_a_reentrant_checkpoint_makes_no_scales(on_a_rank: OnARank) -> None:
    """The first forward is without gradients, where `autocast` updates nothing."""
    assert on_a_rank(partial(planted.scales_behind_autocast, True)) == [True, False, False]
    assert on_a_rank(partial(planted.scales_behind_autocast, False)) == [True] * 3


def test_recomputed_operations_record_their_amaxes_twice(on_a_rank: OnARank) -> None:
    """Those of `te.ops`, by the scales of the microbatch after it; modules do not."""
    assert on_a_rank(partial(planted.recomputed_operations, True)) == [True, False, False]
    assert on_a_rank(partial(planted.recomputed_operations, False)) == [True] * 3


def test_a_recomputing_mlp_takes_its_scales_back(on_a_rank: OnARank) -> None:
    """On 10.0, whose default recipe is MXFP8's, scales stay those of before the forward."""
    found = on_a_rank(partial(planted.recomputing_mlp, False))
    assert found == [(True, True), (False, False), (False, False)]


def test_a_recomputing_mlp_quantizes_cached_weights_again(on_a_rank: OnARank) -> None:
    """By the scale of the microbatch, so a backward multiplies by others than its forward."""
    anew, cached = on_a_rank(planted.recomputing_mlp_on_hopper)
    assert anew == [(True, True)] * 3
    assert cached == [(True, True), (True, False), (True, False)]


def test_a_job_begins_without_the_histories_of_the_one_before(on_a_rank: OnARank) -> None:
    """Transformer Engine keeps them for the whole process, and updates all of them each time."""
    assert on_a_rank(planted.histories_after_a_run) == on_a_rank(planted.histories_after_a_run)


def test_a_layer_that_was_called_before_an_engine_is_made_is_updated(on_a_rank: OnARank) -> None:
    """Transformer Engine registers a layer at its first call alone."""
    assert on_a_rank(planted.called_before_an_engine) == [True, True]
