"""What the package's own judgements record beside a run, for tests that record one by hand."""

from __future__ import annotations

from pytest_precision.recorders.rank_probes import rank_probes
from pytest_precision.registered import OF_PACKAGE

OF_ENGINES = rank_probes(OF_PACKAGE, "engine")
OF_LOOPS = rank_probes(OF_PACKAGE, "loop")
