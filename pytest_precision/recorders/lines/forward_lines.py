"""Forward lines: an operation of a backward belongs to the line of the forward that it is of.

A node of autograd is numbered before the operator that it is of computes, so that the number of the
last node says which operator a backward belongs to.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pytest_precision._torch.around import current_node, next_node
from pytest_precision.recorders.lines.frames import Frames
from pytest_precision.recorders.lines.modules import Modules
from pytest_precision.trace.code_lines import CodeLine


class Origin(NamedTuple):
    """Where an operation comes from.

    Attributes:
        line: of the user's code, if it has one.
        module: path of the module.
        backward: whether it is part of a backward.
    """

    line: CodeLine | None
    module: str
    backward: bool


class ForwardLines:
    """Says where the operation comes from that is being called.

    Args:
        frames: finds lines in stacks.
        modules: knows which module's forward runs.
    """

    def __init__(self, frames: Frames, modules: Modules) -> None:
        self._frames = frames
        self._modules = modules
        self._forwards: dict[int, Origin] = {}

    def origin(self, operator: Any = None) -> Origin:
        """Return where the operation comes from that is being called.

        Args:
            operator: that is being called; None for what torch does not dispatch.
        """
        found = self._frames.stack(operator)
        node = current_node()
        if node is None:
            origin = Origin(found.line, self._modules.path, backward=False)
            self._forwards.setdefault(next_node() - 1, origin)
            return origin
        line, outside = found
        if line is not None and not outside:
            # A backward in Python, or a forward that is computed again.
            origin = Origin(line, self._modules.path, backward=False)
            self._forwards.setdefault(next_node() - 1, origin)
            forward = self._forwards.get(node)
            return origin._replace(backward=True, module=forward.module if forward else "")
        forward = self._forwards.get(node)
        if forward is None:
            return Origin(line, "", backward=True)
        return forward._replace(backward=True)
