"""Criteria as text, as `--criterion` takes them: `ulp(2)`, or `exp_avg:*.bias=close(rtol=1e-5)`."""

from __future__ import annotations

import argparse
import ast
import re

from pytest_precision.errors import expected_but_got
from pytest_precision.parity.compare.calls import CALLS
from pytest_precision.parity.compare.criterion import Criterion

_KEYED = re.compile(r"(?:(?P<key>[^=()]+)=)?(?P<call>\w+\(.*\))", re.DOTALL)


def keyed_criterion(text: str) -> tuple[str, Criterion]:
    """Return the key (`default` if the text has none) and the criterion that a text names.

    Raises:
        argparse.ArgumentTypeError: it names none.
    """
    found = _KEYED.fullmatch(text)
    try:
        if found is None:
            raise ValueError("that is no call")
        return found["key"] or "default", _called(found["call"])
    except (SyntaxError, TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(
            expected_but_got(
                "[KIND[:NAMES]=]CRITERION, such as exp_avg=ulp(2)",
                f"{text!r}: {error}",
                f"criteria are {', '.join(sorted(CALLS))}",
            )
        ) from None


def _called(text: str) -> Criterion:
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call) or ast.unparse(call.func) not in CALLS:
        raise ValueError("there is no such criterion")
    arguments = [_plain(argument) for argument in call.args]
    options = {keyword.arg or "**": _plain(keyword.value) for keyword in call.keywords}
    return CALLS[ast.unparse(call.func)](*arguments, **options)


def _plain(argument: ast.expr) -> object:
    try:
        return ast.literal_eval(argument)
    except ValueError:
        raise ValueError(f"{ast.unparse(argument)} is no number and no text") from None
