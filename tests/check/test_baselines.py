"""Each side of a check is compared with what it computed before, which is kept as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from moving import made, made_elsewhere, made_too

from pytest_precision import Cell, Parity, ParityError, Verdict, unchecked, workloads
from pytest_precision.options import Settings
from pytest_precision.plugin.resources import Resources
from pytest_precision.probes.baselines.kept_check import _key
from pytest_precision.probes.then.recorded_then import Then, then_rule
from pytest_precision.registered import OF_PACKAGE, ProbeSpec, Registered
from pytest_precision.trace.header import Header
from pytest_precision.trace.reader import Trace
from pytest_precision.trace.recording import Recording
from pytest_precision.trace.writer import TraceWriter

Check = Callable[..., Verdict]

TINY = partial(workloads.mlp, width=17, depth=1)

FREE = unchecked(reason="another decay than the workload's rule")


@pytest.fixture
def check(parity_there: Callable[[Cell], Parity], tmp_path: Path) -> Check:
    """Check a candidate against a reference with baselines in a folder of the test."""

    def run(mode: str | None, candidate: Any, reference: Any, **settings: Any) -> Verdict:
        parity = parity_there(Cell(sequence="train1"))
        parity.nodeid = "test_mine.py::test_it[fp32]"
        own = {"baseline": mode, "baseline_dir": tmp_path} | settings
        then = own.pop("then", None)
        if then is not None:
            probe = ProbeSpec(
                name="then", further=lambda test, terms, golden: then_rule(then, test)
            )
            parity.registered = Registered(lambda: [OF_PACKAGE.probes, probe])
        parity.settings = replace(parity.settings, **own)
        return parity.check(candidate, reference, workload=TINY, oracle=FREE)

    return run


def rule_of(then: Then, test: Parity, *terms: object) -> object:
    """What compares a check with the other revision."""
    return then_rule(then, test)


def reason(check: Check, *asked: Any, **settings: Any) -> tuple[str, str]:
    """Return the gate and the reason of a check that does not pass."""
    with pytest.raises(ParityError) as failed:
        check(*asked, **settings)
    verdict = failed.value.verdict
    return f"{verdict.outcome} {verdict.gate}", verdict.reason


def test_a_candidate_without_a_reference_is_compared_in_time(
    check: Check, resources: Resources, tmp_path: Path
) -> None:
    """With the other revision, too, which says of what moved whether it had moved then."""
    runs = tmp_path / "runs"
    layout = partial(made_elsewhere, runs=str(runs))
    then = Then("then", resources.ranks(Settings(timeout=120, device="cpu", lines="off")), dict)
    check("update", layout, "golden/mine")
    runs.unlink()
    gate, said = reason(check, "check", layout, "golden/mine", then=then)
    assert gate == "fail moved"
    assert "the candidate moved since then, and agrees with its baseline: hyper differs" in said
    with pytest.raises(ParityError) as failed:
        check("check", partial(made, decay=0.9), "golden/mine", then=then)
    verdict = failed.value.verdict
    assert verdict.gate == "golden"
    assert "It was so at then, too: the candidate has not moved." in verdict.ruling.details
    assert verdict.then == {"name": "then", "moved": {}, "environment": {}}


def test_a_candidate_without_a_reference_has_a_baseline(check: Check, tmp_path: Path) -> None:
    """It is made on request, held to without one, and named where it moved; nothing else writes."""
    layout = partial(made, decay=0.95)
    with pytest.raises(pytest.skip.Exception, match=r"there is no baseline in .*golden/mine; make"):
        check(None, layout, "golden/mine")
    assert not [*tmp_path.rglob("*.txt")]
    assert check("update", layout, "golden/mine").baseline["state"] == "written"
    (file,) = (tmp_path / "golden/mine").iterdir()
    text = file.read_text()
    assert check(None, layout, "golden/mine").baseline == {"file": str(file), "state": "as kept"}
    moved = (
        "the candidate moved since the baseline: hyper differs before the first step: betas.1 of"
    )
    gate, said = reason(check, "check", partial(made, decay=0.9), "golden/mine")
    assert gate == "fail golden"
    assert moved in said
    assert file.read_text() == text
    file.unlink()
    of_another_machine = file.with_name(f"{file.name.partition('.')[0]}.00000000.txt")
    of_another_machine.write_text(text.replace("key seed 1234", "key seed 99"))
    with pytest.raises(pytest.skip.Exception, match="but one for seed 99, not 1234; make one"):
        check("check", layout, "golden/mine")
    with pytest.raises(ParityError, match="--precision-require makes this an error") as failed:
        check("check", layout, "golden/mine", require=True)
    assert failed.value.verdict.gate == "baseline_there"


def test_sides_that_move_have_their_verdicts(check: Check, tmp_path: Path) -> None:
    """One alone loses the agreement that was; both together drift; a damaged file is an error."""
    then, now = 0.95, 0.9
    sides = partial(made, decay=then), partial(made_too, decay=then)
    assert check("update", *sides).baseline["state"] == "written"
    assert check("update", *sides).baseline["state"] == "unchanged"
    assert check("check", *sides).then == {"name": "the baseline", "moved": {}, "environment": {}}
    gate, said = reason(check, "check", partial(made, decay=now), sides[1])
    assert (gate, "agreement was lost since the baseline: the candidate moved" in said) == (
        "fail moved",
        True,
    )
    gate, said = reason(check, "check", partial(made, decay=now), partial(made_too, decay=now))
    assert (gate, "both sides moved since the baseline and still agree" in said) == (
        "drift drifted",
        True,
    )
    (file,) = tmp_path.rglob("*.txt")
    first, rest = file.read_text().split("\n", 1)
    file.write_text(f"{first}\n<<<<<<< HEAD\n{rest}")
    gate, said = reason(check, "check", *sides)
    assert gate == "error baseline_sound"
    assert "make the baseline again with --precision-baseline=update" in said
    assert check("update", *sides).baseline["state"] == "written"
    assert check("check", *sides).baseline["state"] == "as kept"


def test_deleted_lines_do_not_pass(check: Check, tmp_path: Path) -> None:
    """Of a sealed file that is an error; of one of an older release, the kind is missing.

    Kinds that one of two sides may lack, for another optimizer or another way to call a module.
    """
    layout = partial(made, decay=0.95)
    check("update", layout, "golden/mine")
    (file,) = tmp_path.rglob("*.txt")
    lines = file.read_text("utf-8").splitlines()
    for kind in ("hyper", "flag", "used_param"):
        left = [line for line in lines if not line.startswith(f"{kind} ")]
        assert len(left) < len(lines)
        file.write_text("\n".join([*left, ""]), "utf-8")
        gate, said = reason(check, "check", layout, "golden/mine")
        assert gate == "error baseline_sound"
        assert (
            f"{file}: expected a baseline but got line {len(left)}, 'end {len(lines) - 1} " in said
        )
        older = ["pytest-precision baseline 1", *left[1:-1], ""]
        file.write_text("\n".join(older), "utf-8")
        with pytest.raises(ParityError) as failed:
            check("check", layout, "golden/mine")
        assert failed.value.verdict.gate == "golden"
        assert f"baseline: {kind} is missing from the baseline" in failed.value.verdict.reason
        assert "--precision-baseline=update" in failed.value.verdict.details[-2]
    file.write_text("\n".join(["pytest-precision baseline 1", *lines[1:-1], ""]), "utf-8")
    assert check("check", layout, "golden/mine").baseline["state"] == "as kept"
    assert check("update", layout, "golden/mine").baseline["state"] == "written"
    assert file.read_text("utf-8").splitlines() == lines


def test_how_many_gpus_there_are_asks_for_no_other_baseline(tmp_path: Path) -> None:
    """A card of a machine with eight computes the bits of a card that is alone."""
    keys = []
    for gpu, gpus in (("H100", "1"), ("H100", "8"), ("A100", "1")):
        folder = tmp_path / gpu / gpus
        folder.mkdir(parents=True)
        with TraceWriter(folder, 0) as writer:
            writer.finish(Header(1, {}, {"gpu": gpu, "gpus": gpus, "python": "3.11"}))
        keys.append(_key([Recording("candidate", Cell(), Trace(folder, 1))]))
    assert keys == [{"gpu": "H100"}, {"gpu": "H100"}, {"gpu": "A100"}]
