"""What does not pass although nothing differs, and what a verdict of scores holds."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tiny_decoder import VOCABULARY, TinyDecoder, sequences, tiny

from pytest_precision import Parity, close, noise, unchecked
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.verdict import Ruling
from pytest_precision.rollout import Scorer, weight_snapshot
from pytest_precision.rollout.expected_weights import SyncTerms
from pytest_precision.rollout.score_check import score_check


def ruled(candidate: Any, reference: Any, criterion: Any = None, **options: Any) -> Ruling:
    """Return the ruling on two sides."""
    ways = options.pop("ways", ())
    criteria = Criteria.of(criterion)
    return score_check(candidate, reference, sequences(), ways, criteria, SyncTerms(**options))[0]


def scores_of(model: TinyDecoder) -> Any:
    """Return a function that scores without showing a model."""
    return lambda ids: list(Scorer(model=model).scores(ids).logprobs.values())


def test_one_callable_is_vacuous() -> None:
    """It agrees with itself whatever it computes; in another way it may not."""
    model = tiny()
    assert ruled(model, model).gate == "distinct"
    assert ruled(model, model, ways=["batch"]).outcome == "pass"


def test_scores_without_weights_are_vacuous() -> None:
    """A stale weight may lie below any bound; who accepts that has to say so."""
    model = tiny()
    ruling = ruled(scores_of(copy.deepcopy(model)), model)
    assert ruling.gate == "weights_shown"
    assert "the candidate shows no weights" in ruling.reason
    accepted = {"weight": unchecked(reason="the engine shows none")}
    ruling = ruled(scores_of(copy.deepcopy(model)), model, accepted)
    assert (ruling.outcome, ruling.in_part) == ("pass", True)


def test_a_weight_that_is_left_out_need_not_be_there() -> None:
    """An engine may keep some of its weights to itself, of which the test says why."""
    model = tiny()
    shown = weight_snapshot(model)
    del shown["norm.weight"]
    side = Scorer(model=copy.deepcopy(model), weights=shown)
    assert "never delivered: the candidate holds no norm" in ruled(side, model).reason
    left = {"weight:norm.weight": unchecked(reason="the engine folds it")}
    assert ruled(side, model, left).outcome == "pass"


def test_a_bound_that_a_wrong_weight_satisfies_is_vacuous() -> None:
    """It would let a stale weight of any size pass."""
    model = tiny()
    ruling = ruled(copy.deepcopy(model), model, {"logprob": close(rtol=0, atol=100)})
    assert ruling.gate == "score_bounds"
    assert "with the rows of layers" in ruling.reason
    tight = {"logprob": close(rtol=0, atol=0.01)}
    before = {name: tensor.clone() for name, tensor in model.named_parameters()}
    assert ruled(copy.deepcopy(model), model, tight).outcome == "pass"
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.named_parameters())


def test_no_common_token_is_vacuous() -> None:
    """A side that scores nothing agrees with everything."""
    model = tiny()
    ruling = ruled(Scorer(lambda ids: {}, copy.deepcopy(model)), model)
    assert ruling.gate == "tokens_in_common"


def test_a_key_that_fits_nothing_is_vacuous() -> None:
    """So that a typing error does not leave a weight to a looser criterion."""
    model = tiny()
    ruling = ruled(copy.deepcopy(model), model, {"weight:embed": unchecked(reason="a test")})
    assert ruling.outcome == "pass"
    ruling = ruled(copy.deepcopy(model), model, {"logprobs": close(rtol=0, atol=0.01)})
    assert ruling.gate == "scored_kinds"


def test_noise_needs_a_model() -> None:
    """Honest ways are those in which a model can be called."""
    model = tiny(torch.float32)
    engine = copy.deepcopy(model)
    with torch.no_grad():
        engine.layers[0].mlp.down_proj.weight[0, 0] += 1
    left = {"logprob": noise(), "weight": unchecked(reason="a test")}
    with pytest.raises(ValueError, match="with a model, of which"):
        ruled(engine, scores_of(model), left)


@pytest.mark.precision_matrix(precision=["fp32"], sequence=["train1"], way=["left", "decode9"])
def test_a_way_is_an_axis_of_a_matrix(parity: Parity) -> None:
    """Each cell scores in its own way, and its figures have the names that people look for."""
    model = tiny(torch.float32)
    verdict = parity.score(
        copy.deepcopy(model), model, sequences=sequences(), criterion={"logprob": noise()}
    )
    (way,) = verdict.rollout["ways"]
    assert way == verdict.axes["way"]
    assert verdict.rollout["ways"][way]["statistics"]["rollout_probs_diff_max"] < 1e-6
    assert verdict.status == "partial"


def test_the_first_line_names_token_module_and_weights() -> None:
    """Both log-probabilities, the first module, and that the weights agree."""
    engine, trainer = tiny(), tiny()
    engine.norm.dtype = torch.bfloat16
    ruling = ruled(engine, trainer)
    assert ruling.reason.startswith("logprob of token 1 of sequence 0 is -")
    assert ruling.reason.endswith("first at norm, token 0; weights agree")
    assert any("element" in line and "ulp" in line for line in ruling.details)
    assert ruling.divergence is not None
    assert (ruling.divergence.kind, ruling.divergence.index) == ("logprob", (1,))


def test_a_pass_tells_which_tokens_took_another_expert() -> None:
    """A bound may allow what another expert makes of a token, which the choice alone shows."""
    trainer = tiny(torch.float32, mixture=True)
    engine = copy.deepcopy(trainer)
    tilt = 0.1 * torch.arange(4)
    engine.layers[1].mlp.gate.register_forward_hook(lambda _, __, logits: logits + tilt)
    ruling = ruled(engine, trainer, {"logprob": close(rtol=0, atol=0.2)})
    assert ruling.outcome == "pass"
    first, layers, *figures = ruling.details
    assert first.startswith("decision: token 3 of sequence 1 goes to experts 1, 3 in layers.1.mlp")
    assert layers == "tokens that took another expert, of 34: layers.1.mlp.gate 2"
    assert figures[0].startswith("rollout_probs_diff_max")


@pytest.mark.precision_matrix(precision=["fp32"], sequence=["train1"])
def test_a_module_may_be_invariant(parity: Parity) -> None:
    """One call asks it of a module, as of any kernel."""
    ids = torch.stack(sequences(7, 7, 7, 7))
    embedding = torch.nn.Embedding(VOCABULARY, 4)
    assert parity.invariant(embedding, inputs=ids).status == "pass"
