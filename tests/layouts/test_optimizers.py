"""Layouts on FusedAdam and AnyPrecisionAdamW: exact state, and how they agree with each other."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from one_step import finish_step
from same_gradients import (
    SAME_MATHEMATICS,
    SameGradients,
    steps,
    trained,
    update_error,
    weight,
)

from pytest_precision import (
    Cell,
    Engine,
    Parity,
    ParityError,
    Workload,
    layouts,
    ulp,
    unchecked,
    workloads,
)
from pytest_precision.layouts.optimizer_layouts import ExactStateEngine, FusedAdamEngine

ParityIn = Callable[[Cell], Parity]

BF16 = Cell("bf16", "bf16")

with_remainders = partial(layouts.fused_adam, store_param_remainders=True)
with_bf16_moments = partial(layouts.fused_adam, exp_avg_dtype="bf16", exp_avg_sq_dtype="bf16")

VARIANTS: dict[str, Callable[..., Engine]] = {
    "fp32 master": layouts.fused_adam,
    "remainders": with_remainders,
    "no master": partial(layouts.fused_adam, master_weights=False),
    "remainders, bf16 moments": partial(
        with_remainders, exp_avg_dtype="bf16", exp_avg_sq_dtype="bf16"
    ),
    "fp16": partial(
        layouts.fused_adam,
        master_weight_dtype="fp16",
        exp_avg_dtype="fp16",
        exp_avg_sq_dtype="fp16",
    ),
    "fp8 moments": partial(layouts.fused_adam, exp_avg_dtype="fp8", exp_avg_sq_dtype="fp8"),
    "kahan": layouts.any_precision_adamw,
    "no kahan": partial(layouts.any_precision_adamw, use_kahan_summation=False),
    "kahan, fp32 state": partial(
        layouts.any_precision_adamw,
        momentum_dtype="fp32",
        variance_dtype="fp32",
        compensation_buffer_dtype="fp32",
    ),
}
BUT_FOR_TIES = {
    "master_param": unchecked(reason="a remainder here, a master there"),
    "param": ulp(1),
    "used_param": ulp(1),
    "loss": unchecked(reason="computed with parameters whose ties are rounded another way"),
}
"""Masters and remainders are bitwise the same weights where nothing depends on the parameters."""

SHOWN_BY = {
    "remainders": "remainders, bf16 moments",
    "no master": "fp32 master",
    "no kahan": "kahan",
    "fp8 moments": "fp8 moments of experts",
    "fp16": "those of the distributed optimizer, which swaps with them",
    "kahan, fp32 state": "kahan",
}
"""Variants to those whose checkpoints have all of their state, and are in CI."""

PASSED_BY = ("remainders", "no master", "no kahan", "kahan, fp32 state")
"""Variants each part of whose state an evaluation passes by in another one that is in CI."""


@pytest.mark.parametrize(
    ("layout", "workload", "world_size"),
    [
        pytest.param(layout, workload, ranks, marks=nightly, id=f"{name}-{workload}-{ranks}")
        for name, layout in VARIANTS.items()
        for workload, ranks, nightly in (
            ("mlp", 2, pytest.mark.nightly if name in SHOWN_BY else ()),
            # Without an idle expert's NaN it repeats the other on one rank.
            ("moe", 1, () if name == "fp8 moments" else pytest.mark.nightly),
        )
    ],
)
def test_a_checkpoint_is_the_state_bit_for_bit(
    parity_in: ParityIn, layout: Callable[..., Engine], workload: str, world_size: int
) -> None:
    """Training goes on from it as if there had been none, on an idle expert's NaN too."""
    cell = BF16.replace(sequence="train-save-load-train", world_size=world_size)
    parity_in(cell).check(
        layout,
        layout,
        workload={"mlp": workloads.mlp, "moe": partial(workloads.moe, depth=1)}[workload],
        reference_cell=cell.replace(sequence="train2"),
    )


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(layout, id=name, marks=pytest.mark.nightly if name in PASSED_BY else ())
        for name, layout in VARIANTS.items()
    ],
)
def test_evaluations_and_skipped_steps_leave_no_trace(
    parity_in: ParityIn, layout: Callable[..., Engine]
) -> None:
    """Nor does a checkpoint of an optimizer that has no state yet."""
    cell = BF16.replace(sequence="save-load-train-eval-skip-train")
    parity_in(cell).check(
        layout,
        layout,
        workload=workloads.mlp,
        reference_cell=cell.replace(sequence="train2"),
    )


# Both have their checkpoints from one engine.
@pytest.mark.parametrize(
    "layout",
    [
        layouts.fused_adam,
        pytest.param(layouts.any_precision_adamw, marks=pytest.mark.nightly),
    ],
)
def test_tied_embeddings_are_one_tensor(parity_in: ParityIn, layout: Callable[..., Engine]) -> None:
    """In the model's state twice, in the optimizer's once; fp32 parameters are possible too."""
    cell = Cell("bf16", "fp32", sequence="train-save-load-train", world_size=2)
    parity_in(cell).check(
        layout,
        layout,
        workload=partial(workloads.gpt, depth=1),
        reference_cell=cell.replace(sequence="train2"),
    )


def load_adds_steps(engine: ExactStateEngine) -> None:
    for group in engine.optimizer.param_groups:
        group["step"] += 1


def load_casts_values(engine: ExactStateEngine) -> None:
    for _, parameter in engine.masters():
        full = engine.effective(parameter)
        engine.optimizer.state[parameter]["master_param"].copy_(full)


def load_casts_moments(engine: ExactStateEngine) -> None:
    for state in engine.optimizer.state.values():
        state["exp_avg"] = state["exp_avg"].bfloat16().float()


def planted(workload: Workload, cell: Cell, *, after_load: Callable[..., None]) -> Engine:
    """Masters as remainders, with a defect in loading."""
    engine = with_remainders(workload, cell)
    load = engine.load

    def load_wrongly(folder: Path) -> None:
        load(folder)
        after_load(engine)

    engine.load = load_wrongly  # type: ignore[method-assign]
    return engine


@pytest.mark.parametrize(
    ("after_load", "kind"),
    [
        (load_adds_steps, "step"),
        (load_casts_moments, "exp_avg"),
        (load_casts_values, "master_param"),
    ],
)
def test_what_a_load_destroys_is_named(
    parity_in: ParityIn, after_load: Callable[..., None], kind: str
) -> None:
    """In the load itself, before a step hides where it came from."""
    with pytest.raises(ParityError) as failure:
        parity_in(BF16.replace(sequence="train-save-load-train")).check(
            partial(planted, after_load=after_load), with_remainders, workload=workloads.mlp
        )
    found = failure.value.verdict.divergence
    assert found is not None
    assert (found.step, found.phase, found.kind) == (1, "load", kind)


def test_a_remainder_that_lost_its_bits_shows_in_the_master(parity_in: ParityIn) -> None:
    """The parameters are right all along: only the effective weight tells."""
    with pytest.raises(ParityError) as failure:
        parity_in(BF16.replace(sequence="train-save-load-train")).check(
            partial(planted, after_load=load_casts_values),
            layouts.fused_adam,
            workload=SameGradients,
            criterion=BUT_FOR_TIES,
        )
    found = failure.value.verdict.divergence
    assert found is not None
    assert (found.phase, found.kind) == ("load", "master")


@pytest.mark.parametrize(
    ("saved", "loaded", "words"),
    [
        (
            layouts.fused_adam,
            with_remainders,
            "master_param of parameter 0 to be torch.int16 but got torch.float32; an int16 remain",
        ),
        (with_remainders, layouts.fused_adam, "to be torch.float32 but got torch.int16"),
        (with_bf16_moments, layouts.fused_adam, "exp_avg of parameter 0 to be torch.float32"),
        (layouts.any_precision_adamw, layouts.fused_adam, r"expected state \['exp_avg', "),
    ],
)
def test_a_checkpoint_of_other_dtypes_is_refused(
    parity_in: ParityIn,
    saved: Callable[..., Engine],
    loaded: Callable[..., Engine],
    words: str,
) -> None:
    """Torch would cast the values, and of a remainder leave nothing."""
    with pytest.raises(ParityError, match=words) as failure:
        parity_in(BF16.replace(sequence="train-save-swap-train")).check(
            saved, loaded, workload=workloads.mlp, reference_cell=BF16.replace(sequence="train2")
        )
    assert failure.value.verdict.outcome == "error"


class ThroughTorch(FusedAdamEngine):
    """Checkpoints as every other engine has them."""

    state_dict = Engine.state_dict
    load = Engine.load
    load_state_dict = Engine.load_state_dict


@pytest.mark.usefixtures("one_rank")
def test_torch_alone_would_have_cast_masters_to_remainders(tmp_path: Path) -> None:
    """What a distributed checkpoint does to them: the reason for an engine of ours."""
    saved = trained(layouts.fused_adam, 2, BF16)
    saved.save(tmp_path)
    fresh = with_remainders(SameGradients(), BF16)
    with pytest.raises(ValueError, match=r"to be torch.int16 but got torch.float32"):
        fresh.load(tmp_path)
    fresh.__class__ = ThroughTorch
    fresh.load(tmp_path)
    ((_, parameter),) = fresh.masters()
    assert not fresh.optimizer.state[parameter]["master_param"].any()
    assert not torch.equal(weight(fresh), weight(saved))


@pytest.mark.usefixtures("one_rank")
def test_a_checkpoint_of_another_primary_weight_is_refused(tmp_path: Path) -> None:
    """The parameters are state like any other."""
    trained(layouts.fused_adam, 1, BF16).save(tmp_path)
    other = layouts.fused_adam(SameGradients(), Cell("bf16", "fp32"))
    with pytest.raises(ValueError, match=r"weight to be torch.float32 but got torch.bfloat16"):
        other.load(tmp_path)


@pytest.mark.usefixtures("one_rank")
def test_a_checkpoint_of_other_groups_is_refused(tmp_path: Path) -> None:
    """State goes by names, and is not given to whatever stands in the same place."""
    engine = trained(layouts.fused_adam, 1, BF16)
    state: dict[str, Any] = engine.state_dict()
    state["optimizer"]["param_groups"][0]["params"] = ["another.weight"]
    with pytest.raises(ValueError, match=r"\['weight'\]\] but got \[\['another.weight'\]\]"):
        engine.load_state_dict(state)


@pytest.mark.parametrize(
    ("layout", "axes", "words"),
    [
        (
            partial(layouts.fused_adam, exp_avg_dtype="fp4"),
            {},
            "exp_avg_dtype to be one of fp32, bf16, fp16, fp8 but got exp_avg_dtype='fp4'",
        ),
        (partial(layouts.fused_adam, master_weight_dtype="bf16"), {}, "one of fp32, fp16"),
        (partial(layouts.any_precision_adamw, variance_dtype="fp8"), {}, "one of fp32, bf16 but"),
        (with_remainders, {"primary_weight": "fp32"}, "bf16 parameters with master weights"),
        (partial(with_remainders, master_weights=False), {}, "got master_weights=False"),
        (partial(with_remainders, master_weight_dtype="fp16"), {}, "with fp32 masters only"),
        (layouts.fused_adam, {"precision": "fp16"}, "knows primary_weight fp32, fp16 in fp16 but"),
    ],
)
def test_what_is_not_known_or_without_effect_is_refused(
    layout: Callable[..., Engine], axes: dict[str, Any], words: str
) -> None:
    """A cell must not pass by running something else than it says."""
    with pytest.raises(ValueError, match=words):
        layout(SameGradients(), BF16.replace(**axes))


@pytest.mark.usefixtures("one_rank")
def test_fp32_masters_agree_with_those_of_torch() -> None:
    """Within the rounding of another order of operations; bf16 moments are beyond it."""
    assert update_error(layouts.fused_adam, layouts.master_adamw, 100, BF16) <= SAME_MATHEMATICS
    assert update_error(with_bf16_moments, layouts.master_adamw, 100, BF16) > SAME_MATHEMATICS


def test_masters_and_remainders_are_the_same_weights(parity_in: ParityIn) -> None:
    """Bit for bit, where gradients do not depend on how parameters are rounded."""
    parity_in(BF16.replace(sequence="train2-save-load-train6", world_size=2)).check(
        with_remainders,
        layouts.fused_adam,
        workload=SameGradients,
        criterion=BUT_FOR_TIES,
    )


@pytest.mark.usefixtures("one_rank")
def test_their_parameters_differ_on_exact_ties_only() -> None:
    """A remainder rounds ties away from zero, a cast to even."""
    differing = 0
    runs = (steps(layout, 100, BF16) for layout in (with_remainders, layouts.fused_adam))
    for ours, theirs in zip(*runs, strict=True):
        master = weight(ours)
        assert torch.equal(master, weight(theirs))
        (here,), (there,) = ours.model.parameters(), theirs.model.parameters()
        low_half = master[here != there].view(torch.int32) & 0xFFFF
        assert (low_half == 0x8000).all()
        differing += low_half.numel()
    assert differing > 0


def first_difference(
    parity: Parity, candidate: Callable[..., Engine], **options: Any
) -> tuple[int, str, str]:
    with pytest.raises(ParityError) as failure:
        parity.check(candidate, layouts.fused_adam, workload=workloads.mlp, **options)
    found = failure.value.verdict.divergence
    assert found is not None
    return found.step, found.phase, found.kind


def test_bf16_moments_differ_in_the_first_step(parity_in: ParityIn) -> None:
    """As what they are: the moment that is stored in bf16, not what follows from it."""
    variance = partial(layouts.fused_adam, exp_avg_sq_dtype="bf16")
    for candidate, kind in ((with_bf16_moments, "exp_avg"), (variance, "exp_avg_sq")):
        where = first_difference(parity_in(BF16), candidate)
        assert where == (1, "optimizer_step", kind)


def test_bf16_moments_move_the_weights_from_the_second_step_on(parity_in: ParityIn) -> None:
    """The kernel rounds the moments when it stores them, after it has used them."""
    stored = unchecked(reason="stored in another dtype")
    where = first_difference(
        parity_in(BF16),
        with_bf16_moments,
        criterion={"exp_avg": stored, "exp_avg_sq": stored, "master_param": stored},
    )
    assert where == (2, "optimizer_step", "master")


@pytest.mark.usefixtures("one_rank")
def test_gradients_are_clipped_in_fp32() -> None:
    """The optimizer's have as many bits as the coefficient gives them; bf16 would have 8."""
    (parameter,) = trained(layouts.fused_adam, 1, BF16).model.parameters()
    clipped = parameter.decoupled_grad
    norm = torch.linalg.vector_norm(parameter.grad.double())
    assert norm > SameGradients.max_norm
    assert clipped.dtype == torch.float32
    assert not torch.equal(clipped, clipped.bfloat16().float())


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(("dtype", "lost"), [("fp8", True), ("fp16", False)])
def test_an_expert_without_tokens_has_nan_moments_in_fp8(dtype: str, lost: bool) -> None:
    """Zero gradients have the scale zero, whose reciprocal fp8 multiplies with, as in TE."""
    layout = partial(layouts.fused_adam, exp_avg_dtype=dtype, exp_avg_sq_dtype=dtype)
    engine = layout(workloads.moe(), BF16)
    idle = next(p for name, p in engine.model.named_parameters() if "experts" in name)
    for step in (1, 2):
        engine.forward_backward(step)
        idle.grad.zero_()
        finish_step(engine)
    assert bool(idle.isnan().all()) == lost
