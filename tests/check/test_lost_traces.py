"""Who empties the temporary folder during a check makes no numbers differ."""

from __future__ import annotations

import shutil
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from pytest_precision import Cell, Engine, Parity, ParityError, Workload, layouts, workloads
from pytest_precision.options import Settings
from pytest_precision.ranks import RankPool
from pytest_precision.trace.cache import TraceCache


def losing_the_reference(workload: Workload, cell: Cell, *, folder: str) -> Engine:
    """A layout that is made while somebody removes what the reference has recorded."""
    traces = [path for path in Path(folder).glob("*traces-*/*") if path.is_dir()]
    shutil.rmtree(min(traces, key=lambda path: path.stat().st_mtime_ns))
    return layouts.ddp(workload, cell)


def test_a_lost_trace_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict says what is missing; the next check records both sides anew."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with closing(TraceCache()) as traces, closing(RankPool("inline")) as ranks:
        parity = Parity("test", Cell(sequence="train1"), Settings(timeout=60), ranks, traces)
        candidate = partial(losing_the_reference, folder=str(tmp_path))
        with pytest.raises(ParityError, match=r"error: the comparison failed: .*No such file"):
            parity.check(candidate, layouts.adamw, workload=workloads.mlp)
        assert parity.check(layouts.ddp, layouts.adamw, workload=workloads.mlp)
    assert [verdict.outcome for verdict in parity.verdicts] == ["error", "pass"]
