"""Proposal: most tensors decide about a bound, and what is much further off has a name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from pytest_precision import whole
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.compare.divergences import judge
from pytest_precision.probes.proposals.proposal import proposed
from pytest_precision.probes.proposals.required_tolerance import rounded_up
from pytest_precision.probes.proposals.tensor_needs import ComparedRun
from pytest_precision.trace.moment import INIT, Moment
from pytest_precision.trace.reader import Trace

Write = Callable[..., Trace]
Values = Mapping[tuple[str, str], Tensor]

STEP = Moment(0, "train", 1, "optimizer_step")

UNIT = torch.finfo(torch.float32).eps


def values(kind: str, **tensors: Tensor) -> dict[tuple[str, str], Tensor]:
    return {(kind, name.replace("_", ".")): tensor for name, tensor in tensors.items()}


@pytest.fixture
def run(write_trace: Write) -> Callable[..., ComparedRun]:
    """A comparison of two traces of one step, which start from `start`."""

    def make(ours: Values, theirs: Values, start: Values | None = None) -> ComparedRun:
        sides = []
        for after in (ours, theirs):
            moments = [(INIT, [whole(*key, tensor) for key, tensor in (start or {}).items()])]
            moments.append((STEP, [whole(*key, tensor) for key, tensor in after.items()]))
            sides.append(write_trace(moments[0 if start else 1 :]))
        return ComparedRun(judge(*sides, Criteria.of(None)), sides[1])

    return make


def off(tensor: Tensor, rel: float) -> Tensor:
    """The same tensor with this relative error."""
    return tensor * (1 + rel)


MATRICES = {f"layers_{n}_weight": torch.arange(1.0, 41) for n in range(5)}


def calls(runs: list[ComparedRun], unit: float = UNIT) -> dict[str, str]:
    found = proposed(runs, unit)
    assert found is not None
    return {key: criterion.call for key, criterion in found.items()}


def test_most_tensors_decide_and_an_outlier_has_a_name(run: Callable[..., ComparedRun]) -> None:
    """Its layer's number is left open, since the same tensor of another layer is as far off."""
    theirs = values("grad", **MATRICES, layers_7_bias=torch.arange(1.0, 9))
    ours = {key: off(t, 1e-3 if "bias" in key[1] else 1e-5) for key, t in theirs.items()}
    found = calls([run(ours, theirs)])
    assert found == {"grad": "norm(rel=3e-05)", "grad:layers.*.bias": "norm(rel=0.009)"}


def test_the_largest_error_of_all_runs_counts(run: Callable[..., ComparedRun]) -> None:
    """What one seed needs, the next one may need."""
    theirs = values("grad", **MATRICES)
    runs = [run({k: off(t, rel) for k, t in theirs.items()}, theirs) for rel in (1e-5, 3e-5)]
    assert calls(runs[:1]) == {"grad": "norm(rel=3e-05)"}
    assert calls(runs) == {"grad": "norm(rel=7e-05)"}


def test_one_element_has_a_floor_whether_it_was_off_or_not(
    run: Callable[..., ComparedRun],
) -> None:
    """The terms of its sum may cancel on other data."""
    theirs = values("grad", **MATRICES, scale=torch.ones(1))
    ours = {key: off(t, 1.1e-6 * (t.numel() > 1)) for key, t in theirs.items()}
    assert calls([run(ours, theirs)])["grad:scale"] == "norm(rel=0.003)"


def test_one_element_in_bf16_is_left_out(run: Callable[..., ComparedRun]) -> None:
    """A bound of a thousand roundings would say nothing."""
    theirs = values("grad", **MATRICES, scale=torch.ones(1))
    ours = {key: off(t, 1.1e-2) for key, t in theirs.items()}
    found = calls([run(ours, theirs)], 2**-7)
    assert found["grad"] == "norm(rel=0.03)"
    assert found["grad:scale"].startswith("unchecked(reason=")


def test_what_is_left_out_of_many_kinds_has_one_key(run: Callable[..., ComparedRun]) -> None:
    """And no other key, which would be more specific."""
    theirs = {
        key: tensor
        for kind in ("grad", "reduced_grad", "exp_avg", "exp_avg_sq")
        for key, tensor in values(kind, **MATRICES, scale=torch.ones(1)).items()
    }
    found = calls([run({key: off(t, 1.1e-2) for key, t in theirs.items()}, theirs)], 2**-7)
    assert [key for key in found if "scale" in key] == ["default:scale"]
    assert found["exp_avg_sq"] == "norm(rel=0.05)"  # a square


def test_a_loss_has_a_floor(run: Callable[..., ComparedRun]) -> None:
    """Eight units in the last place of fp32, or a sixteenth of what gradients are off."""
    theirs = values("loss", microbatches=torch.arange(1.0, 7))
    ours = {key: off(t, 2.0**-23) for key, t in theirs.items()}
    assert calls([run(ours, theirs)]) == {"loss": "norm(rel=1e-06)"}
    assert calls([run(ours, theirs)], 2**-7) == {"loss": "norm(rel=0.0005)"}


def test_a_weight_is_off_by_a_share_of_its_way(run: Callable[..., ComparedRun]) -> None:
    """A bias that starts at zero is further off than a matrix whose update is as far off."""
    start = values("master", **MATRICES, out_bias=torch.zeros(20), in_bias=torch.zeros(20))
    moved = {key: torch.full_like(tensor, 0.1) for key, tensor in start.items()}
    theirs = {key: tensor + moved[key] for key, tensor in start.items()}
    ours = {key: tensor + off(moved[key], 1e-3) for key, tensor in start.items()}
    found = calls([run(ours, theirs, start)])
    biases = {f"master:{side}.bias": "norm(rel=0.005)" for side in ("out", "in")}
    assert found == {"master": "norm(rel=2e-05)"} | biases


@pytest.mark.parametrize(
    ("ours", "kind"),
    [(torch.nan, "grad"), (1.5, "lr"), (2.0, "grad"), (1, "step")],
    ids=["not finite", "a setting", "another tensor", "an integer"],
)
def test_there_is_no_bound_for_what_is_no_rounding(
    run: Callable[..., ComparedRun], ours: float, kind: str
) -> None:
    """Nothing that proves anything would let it pass."""
    theirs = torch.arange(1, 9) if isinstance(ours, int) else torch.arange(1.0, 9)
    candidate = theirs + 1 if isinstance(ours, int) else theirs * ours
    assert proposed([run(values(kind, w=candidate), values(kind, w=theirs))], UNIT) is None


def test_what_noise_moves_most_is_off_as_much_on_other_data(
    run: Callable[..., ComparedRun],
) -> None:
    """Rounding decides about it, whether the roundings of this data have met it or not."""
    theirs = values("grad", **MATRICES, key_bias=torch.arange(1.0, 9))
    seen = run({key: off(t, 1e-5) for key, t in theirs.items()}, theirs)
    noise = {key: off(t, 1e-3 if "bias" in key[1] else 1e-5) for key, t in theirs.items()}
    found = proposed([seen], UNIT, run(noise, theirs))
    assert found is not None
    assert found["grad"].call == "norm(rel=3e-05)"
    assert found["grad:key.bias"].call == "norm(rel=0.02)"


def test_gradients_may_be_off_on_other_data_though_they_agree(
    run: Callable[..., ComparedRun],
) -> None:
    """One weight in sixteen may be stored otherwise then: a quarter of what noise in all does."""
    gradients, moments = (values(kind, **MATRICES) for kind in ("grad", "exp_avg"))
    ours = {**gradients, **{key: off(tensor, 1e-7) for key, tensor in moments.items()}}
    noise = {key: off(tensor, 4e-4) for key, tensor in gradients.items()}
    found = proposed([run(ours, gradients | moments)], UNIT, run(noise, gradients))
    assert found is not None
    assert found["grad"].call == "norm(rel=0.0002)"


def test_without_floors_the_data_alone_decide(run: Callable[..., ComparedRun]) -> None:
    """As where a bound of a run that agrees is to be as tight as the run."""
    theirs = values("grad", **MATRICES) | values("loss", microbatches=torch.arange(1.0, 7))
    ours = {key: off(t, 4e-7 * (key[0] == "grad")) for key, t in theirs.items()}
    for floors, bound in ((True, "norm(rel=0.008)"), (False, "norm(rel=8e-07)")):
        criteria = proposed([run(ours, theirs)], 2**-7, floors=floors)
        assert criteria is not None
        assert criteria["grad"].call == bound


@pytest.mark.parametrize(("rel", "bound"), [(0.099, "norm(rel=0.2)"), (0.2, None)])
def test_a_kind_whose_bound_says_nothing_has_none(
    run: Callable[..., ComparedRun], rel: float, bound: str | None
) -> None:
    """Nor has any other kind then, since the whole proposal would pass what is wrong."""
    theirs = values("grad", **MATRICES) | values("exp_avg", **MATRICES)
    ours = {key: off(t, rel if key[0] == "grad" else 1e-6) for key, t in theirs.items()}
    criteria = proposed([run(ours, theirs)], UNIT)
    assert (criteria and criteria["grad"].call) == bound


def test_fewer_kinds_have_a_key_each(run: Callable[..., ComparedRun]) -> None:
    """A tensor that is left out in three kinds is compared in all others."""
    theirs = {
        key: tensor
        for kind in ("grad", "reduced_grad", "exp_avg")
        for key, tensor in values(kind, **MATRICES, scale=torch.ones(1)).items()
    }
    keys = calls([run({key: off(t, 1.1e-2) for key, t in theirs.items()}, theirs)], 2**-7)
    assert [key for key in keys if "scale" in key] == [
        "grad:scale",
        "reduced_grad:scale",
        "exp_avg:scale",
    ]


def test_a_weight_is_allowed_a_part_of_its_way_alone(run: Callable[..., ComparedRun]) -> None:
    """A bound of four times what it needs would let it stand still."""
    start = values("master", **MATRICES)
    moved = {key: torch.full_like(tensor, 0.1) for key, tensor in start.items()}
    theirs = {key: tensor + moved[key] for key, tensor in start.items()}
    for part, share in ((0.01, 0.04), (0.1, 0.2), (0.25, 0.25)):
        ours = {key: tensor + moved[key] * (1 + part) for key, tensor in start.items()}
        criteria = proposed([run(ours, theirs, start)], UNIT)
        assert criteria is not None
        way = float(moved["master", "layers.0.weight"].norm())
        bound = share * way / float(theirs["master", "layers.0.weight"].norm())
        assert criteria["master"].call == f"norm(rel={rounded_up(bound):g})"


def test_a_weight_in_bf16_may_be_stored_as_its_neighbour(run: Callable[..., ComparedRun]) -> None:
    """A quarter of a unit in the last place, though this data has stored none otherwise."""
    start = {key: t.bfloat16() for key, t in values("param", **MATRICES).items()}
    theirs = {key: tensor + 1 for key, tensor in start.items()}
    gradients = values("grad", **MATRICES)
    ours = {**theirs, **{key: off(t, 1e-6) for key, t in gradients.items()}}
    compared = run(ours, theirs | gradients, start)
    assert calls([compared])["param"] == "norm(rel=0.002)"
    criteria = proposed([compared], UNIT, floors=False)
    assert criteria is not None
    assert criteria["param"].call == "norm(rel=2e-07)"


def test_layers_share_the_largest_bound_of_their_pattern(run: Callable[..., ComparedRun]) -> None:
    """A digit within a word is no number of a layer."""
    biases = {f"layers_{n}_b2": torch.arange(1.0, 9) for n in (7, 8)}
    theirs = values("grad", **MATRICES, **biases)
    sizes = {"layers.7.b2": 2e-3, "layers.8.b2": 1e-3}
    ours = {key: off(t, sizes.get(key[1], 1e-5)) for key, t in theirs.items()}
    assert calls([run(ours, theirs)]) == {
        "grad": "norm(rel=3e-05)",
        "grad:layers.*.b2": "norm(rel=0.02)",
    }
