"""Words for messages that depend on whether the user records a layout, script or command."""

from __future__ import annotations

from typing import NamedTuple


class WayIn(NamedTuple):
    """Phrases in messages that depend on what the user runs: a layout, a script or a command.

    Attributes:
        named: how a model is named without the wrapper around it.
        shows_grad: what shows gradients before they are reduced.
        ended: where a loop was ended that trains too few steps.
        longer: how it trains more.
    """

    named: str
    shows_grad: str = ""
    ended: str = ""
    longer: str = ""


LAYOUT = WayIn("pass the bare model and give the wrapper as Engine(..., forward_model=wrapper)")

SCRIPT = WayIn(
    named="name the bare model with record(model=model)",
    shows_grad='record(see={"grad"}) shows it',
    ended="in the block of record()",
    longer="give it more data or epochs, and keep optimizer.step() in the block",
)

_IN_THE_FILE = (
    "let the file name the bare model: `from pytest_precision import record`, and "
    "record(model=model) before its first forward"
)

COMMAND = WayIn(
    named=_IN_THE_FILE,
    shows_grad='record(see={"grad"}) of the package shows it, in the file before its first forward',
    ended="when the file had ended",
    longer="let its arguments ask for more, and its own process step a torch.optim.Optimizer",
)

RECORDING = WayIn(named=_IN_THE_FILE, shows_grad="--see grad shows it")
