"""Find the first module, in the order of execution, whose output two sides do not share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pytest_precision.parity.compare.tensors import statistics
from pytest_precision.rollout.module_outputs import ModuleOutputs
from pytest_precision.rollout.token_rows import Token, decoded


class ModuleDifference(NamedTuple):
    """How the outputs of one module differ.

    Attributes:
        name: of the module.
        tokens: that both sides have.
        differing: how many of them differ.
        first: the first of these.
        dtypes: of the candidate and the reference, where they are not the same.
    """

    name: str
    tokens: int
    differing: int
    first: Token | None = None
    dtypes: tuple[str, str] | None = None


class ChoiceDifference(NamedTuple):
    """How the choices of one router differ.

    Attributes:
        name: of the router.
        tokens: that both sides have.
        differing: how many of them went to other experts.
        first: the first of these.
        ours, theirs: the experts that it went to.
        margin: of the reference's choice.
    """

    name: str
    tokens: int
    differing: int
    first: Token
    ours: list[int]
    theirs: list[int]
    margin: float


def module_differences(
    candidate: ModuleOutputs, reference: ModuleOutputs, sequence: int | None = None
) -> list[ModuleDifference]:
    """Compare all modules that both sides have, in the order in which the reference runs them.

    One that gives back a part of each row, as a rank of tensor parallelism does, is left out.

    Args:
        candidate: outputs of the side under test.
        reference: those that it must agree with.
        sequence: whose tokens are compared; all unless given.
    """
    compared = []
    ours_shown = {*candidate.names}
    for name in reference.names:
        if name not in ours_shown or candidate.widths[name] != reference.widths[name]:
            continue
        ours, theirs = candidate.of(name), reference.of(name)
        codes, at_ours, at_theirs = np.intersect1d(ours.codes, theirs.codes, return_indices=True)
        if sequence is not None:
            chosen = np.array([decoded(int(code))[0] == sequence for code in codes], dtype=bool)
            codes, at_ours, at_theirs = codes[chosen], at_ours[chosen], at_theirs[chosen]
        if not len(codes):
            continue
        dtypes = candidate.dtypes[name], reference.dtypes[name]
        if dtypes[0] != dtypes[1]:
            first = decoded(int(codes[0]))
            compared.append(ModuleDifference(name, len(codes), len(codes), first, dtypes))
            continue
        differ = codes[ours.digests[at_ours] != theirs.digests[at_theirs]]
        first_token = decoded(int(differ[0])) if len(differ) else None
        compared.append(ModuleDifference(name, len(codes), len(differ), first_token))
    return compared


def choice_differences(
    candidate: ModuleOutputs, reference: ModuleOutputs
) -> list[ChoiceDifference]:
    """Return the routers that sent a token to another expert, in the order of execution."""
    compared = []
    for name in reference.routers:
        if name not in candidate.routers:
            continue
        ours, theirs = candidate.choices(name), reference.choices(name)
        codes, at_ours, at_theirs = np.intersect1d(ours.codes, theirs.codes, return_indices=True)
        differ = np.flatnonzero(ours.digests[at_ours] != theirs.digests[at_theirs])
        if len(differ):
            assert ours.values is not None
            assert theirs.values is not None
            place = int(differ[0])
            ours_row = ours.values[int(at_ours[place])].tolist()
            theirs_row = theirs.values[int(at_theirs[place])].tolist()
            experts = [[int(expert) for expert in row[:-1]] for row in (ours_row, theirs_row)]
            to_ours, to_theirs = experts
            first = decoded(int(codes[place]))
            compared.append(
                ChoiceDifference(
                    name, len(codes), len(differ), first, to_ours, to_theirs, theirs_row[-1]
                )
            )
    return compared


def value_words(candidate: ModuleOutputs, reference: ModuleOutputs, name: str, token: Token) -> str:
    """Return in words how the values of a module differ at a token; empty if they were not kept."""
    rows = [_row(outputs, name, token) for outputs in (candidate, reference)]
    ours, theirs = rows
    if ours is None or theirs is None or ours.dtype is not theirs.dtype:
        return ""
    figures = statistics(ours, theirs)
    if figures.first is None:
        return ""
    apart = "" if figures.max_ulp is None else f", at most {figures.max_ulp} ulp"
    index = figures.first[0]
    values = f"{figures.candidate_first:.6g} here, {figures.reference_first:.6g} in the reference"
    return (
        f"{name} of token {token[1]}: {figures.mismatched} of {figures.numel} elements "
        f"differ{apart}; element {index} is {values}"
    )


def _row(outputs: ModuleOutputs, name: str, token: Token) -> Tensor | None:
    if name not in outputs.names:
        return None
    shown = outputs.of(name)
    places = [place for place, code in enumerate(shown.codes) if decoded(int(code)) == token]
    if shown.values is None or not places:
        return None
    return torch.as_tensor(shown.values[places[0]])
