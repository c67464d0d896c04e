"""Estimated: an update that no known wrong rule has made, in the words of the rule's options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pytest_precision.trace.oracle_log import OracleLog

WORDS = {
    "lr": "the learning rate",
    "weight_decay": "weight decay",
    "betas.0": "beta1",
    "betas.1": "beta2",
}
"""Options whose name is not what people say."""

NO_ESTIMATE = 1e-3
"""Share of its declared value below which an option is left out."""


def explanation(log: OracleLog) -> str:
    """Say with which options the rule would have made the updates; empty if none fit."""
    told = {group: " or ".join(map(_words, found.items())) for group, found in _found(log)}
    if len(told) < len(log.estimates) or not told:
        return ""
    same = {*told.values()}
    if len(same) == 1:
        (words,) = same
        alone = len(told) == 1 and log.groups > 1
        return words + f", in parameter group {next(iter(told))} alone" * alone
    return "; ".join(f"{words}, in parameter group {group}" for group, words in told.items())


def _found(log: OracleLog) -> Iterator[tuple[str, Mapping[str, Sequence[float]]]]:
    for group, found in sorted(log.estimates.items()):
        if found:
            yield group, found


def _words(estimate: tuple[str, Sequence[float]]) -> str:
    names, values = estimate
    parts = zip(names.split(), values[::2], values[1::2], strict=True)
    return " and ".join(_as_if(*part) for part in parts)


def _as_if(name: str, fitted: float, declared: float) -> str:
    """Say one wrong option in words: `as if the learning rate were 0.667 of it`."""
    if name == "gradient":
        return f"as if gradients were {fitted:.3g} times what they are"
    words = WORDS.get(name, name)
    if declared and abs(fitted / declared) < NO_ESTIMATE and name != "eps":
        return f"as if {words} were left out"
    if name == "lr" and declared:
        return f"as if {words} were {fitted / declared:.3g} of it"
    return f"as if {words} were {fitted:.3g}, not {declared:.3g}"
