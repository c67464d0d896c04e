"""The conditions of one check, such as tolerances, required dtypes and limits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pytest_precision.errors import expect_type, expected_but_got, is_bad_input, named
from pytest_precision.matrix.contract import Contract
from pytest_precision.options.settings import BARE
from pytest_precision.parity.compare.bounds import Unchecked
from pytest_precision.parity.compare.calls import Write, in_a_test
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.compare.criterion import Criterion
from pytest_precision.parity.exempt import Exempt
from pytest_precision.registered import OF_PACKAGE, Registered

__tracebackhide__ = is_bad_input


class Terms(NamedTuple):
    """The terms of a check: criteria, limits, required dtypes and exemptions.

    Attributes:
        criteria: how equal two tensors must be.
        max_lost_updates: largest share of updates that the candidate may lose; None for any share.
        contract: what the candidate must have stored and done, in addition to its cell's own.
        exempt: what is judged neither by the workload's rule nor by identities.
        write: writes criteria down as they were asked for.
        lines: whether a failure is run once more to name the line of the first wrong value.
        root: the folder that files are named from: pytest's root, or where a command runs.
        jitter: how many runs of the candidate with delays must have the bits of the one without.
        bare: whether nothing was recorded by which a side is judged alone.
        registered: the judgements of the session.
    """

    criteria: Criteria
    max_lost_updates: float | None = None
    contract: Contract | None = None
    exempt: Exempt = Exempt()
    jitter: int = 0
    lines: bool = True
    root: Path = Path()
    write: Write = in_a_test
    bare: bool = False
    registered: Registered = OF_PACKAGE

    @classmethod
    def of(
        cls,
        criterion: Criterion | Mapping[str, Criterion] | None,
        max_lost_updates: float | None = None,
        contract: Contract | None = None,
        oracle: Unchecked | Mapping[str, Unchecked] | None = None,
    ) -> Terms:
        """Make the terms of a check from the arguments that the test passed to it.

        Raises:
            TypeError: for a criterion, a limit, a contract or an oracle of another type.
            ValueError: for a limit that is not from 0 to 1, and for a kind that no oracle judges.
        """
        _expect_share(max_lost_updates)
        if contract is not None:
            expect_type(
                "contract",
                contract,
                Contract,
                "a Contract",
                "write Contract(dtypes=..., paths=...)",
            )
        return cls(Criteria.of(criterion), max_lost_updates, contract, Exempt.of(oracle))

    @property
    def bared(self) -> Terms:
        """Return these terms for a bare cell, in which no side is judged alone."""
        return self._replace(bare=True, max_lost_updates=None, exempt=Exempt(BARE))


def _expect_share(limit: object) -> None:
    if limit is None:
        return
    got = named("max_lost_updates", limit)
    if isinstance(limit, bool) or not isinstance(limit, (int, float)):
        raise TypeError(expected_but_got("a share from 0 to 1", got, "pass a Python float"))
    if not 0 <= limit <= 1:
        raise ValueError(expected_but_got("a share from 0 to 1", got, "5 % is 0.05"))
