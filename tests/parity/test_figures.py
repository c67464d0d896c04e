"""Figures of a verdict: who makes them, and how they are read."""

from __future__ import annotations

from dataclasses import fields
from pkgutil import resolve_name

import pytest

from pytest_precision import Verdict
from pytest_precision.parity.verdict import Ruling
from pytest_precision.registered import OF_PACKAGE, ProbeSpec

SIDES = dict.fromkeys(("candidate", "reference", "workload", "criterion"), "")


def test_each_figure_is_an_attribute_of_the_verdict() -> None:
    """What users of a verdict read stays an attribute, whoever makes it."""
    figures = {"curves": {"step": [1]}, "invented": 1}
    verdict = Verdict(nodeid="t", axes={}, ruling=Ruling(), figures=figures, **SIDES)
    assert (verdict.curves, verdict.needed, verdict.observations) == ({"step": [1]}, None, 0)
    with pytest.raises(AttributeError, match="'Verdict' object has no attribute 'curve'"):
        _ = verdict.curve
    data = verdict.as_dict()
    assert [*data][-4:] == ["bytes", "seconds", "curves", "invented"]  # in the order of the table


REFERENCES = [
    reference
    for probe in OF_PACKAGE.probes
    for reference in (
        *(figure.function for figure in probe.figures),
        *(gate.function for gate in probe.gates),
        *(getattr(probe, field.name) for field in fields(ProbeSpec)),
    )
    if isinstance(reference, str) and ":" in reference
]


@pytest.mark.parametrize("reference", REFERENCES)
def test_what_a_judgement_names_is_there(reference: str) -> None:
    """Nothing imports it, so that nothing else would tell."""
    assert callable(resolve_name(reference))
