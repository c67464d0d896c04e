"""Split a recorded tensor's name into its parts, and join them again. Only this module joins and
splits names.

head.weight                        what most kinds show, by its own name
weight_decay of head.weight        an option of a parameter
microbatch 3: head.weight          a sum of gradients after a microbatch
microbatch3: blocks.0.router       a choice of a module in a microbatch
ema: head.weight                   a tensor of a further module
up.weight.rowwise                  an operand of a quantized weight that is resident
up.weight.rowwise.data             one of the tensors of an operand in use
up.quantizers.0.input              the scale of an operand under delayed scaling
up.quantizers.0.input.history      its amaxes
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from pytest_precision.errors import expected_but_got

OPERANDS = ("quantized", "scale", "amax", "recorded_amax", "used_quantized")
"""Kinds whose names end with an operand, one of its tensors, or a history."""

WITHOUT_BLANK = ("decision", "margin")
"""Kinds that write the number of a microbatch without a blank before it."""

WRAPPER_NAMES = frozenset(
    {"_checkpoint_wrapped_module", "_forward_module", "_fsdp_wrapped_module", "_orig_mod"}
)
"""Names of the child that a wrapper stands for: activation checkpointing, Fabric, FSDP, compile."""

_MICROBATCH = re.compile(r"microbatch ?(\d+): ")
_OPERAND = re.compile(r"(.*)\.((?:rowwise|columnwise)(?:\.(?:data|scale|amax))?|history)")
_SLOT = re.compile(r".*\.quantizers\.\d+\.(input|weight|gradient)")
_WEIGHT = re.compile(r"(.*\.)?weight(\d*)")
_WRAPPER = re.compile(rf"(?:^|\.)(?:{'|'.join(sorted(WRAPPER_NAMES))})(?![^.:])")


class TensorKey(NamedTuple):
    """A recorded tensor's name in parts: owner (such as a parameter), part of it, and microbatch.

    Attributes:
        owner: what the tensor belongs to: a parameter, a weight, a module.
        part: what of it the tensor is: an option, an operand, a tensor of a further module; empty
            for the owner itself.
        microbatch: number of the microbatch that it was seen after; None for any other moment.
    """

    owner: str
    part: str = ""
    microbatch: int | None = None

    @classmethod
    def of(cls, kind: str, name: str) -> TensorKey:
        """Split a recorded tensor's name into owner (such as a parameter), part and microbatch."""
        match = _MICROBATCH.match(name)
        microbatch, rest = (int(match[1]), name[match.end() :]) if match else (None, name)
        if kind == "hyper":
            part, _, owner = rest.partition(" of ")
        elif kind == "average":
            owner, _, part = rest.partition(": ")
        elif kind in OPERANDS and (operand := _OPERAND.fullmatch(rest)) is not None:
            owner, part = operand[1], operand[2]
        else:
            owner = rest
            part = ""
        return cls(owner, part, microbatch)

    def name(self, kind: str) -> str:
        """Join owner (such as a parameter), part and microbatch to a recorded tensor's name."""
        joined = self.owner
        if kind == "hyper":
            joined = f"{self.part} of {self.owner}"
        elif kind == "average":
            joined = f"{self.owner}: {self.part}"
        elif self.part:
            joined = f"{self.owner}.{self.part}"
        if self.microbatch is None:
            return joined
        return f"microbatch{'' if kind in WITHOUT_BLANK else ' '}{self.microbatch}: {joined}"

    @property
    def option(self) -> str:
        """Return the name of the option that a part belongs to: `betas` for the part `betas.1`."""
        return self.part.partition(".")[0]

    @property
    def operand(self) -> OperandPart | None:
        """Return which buffer of a quantized weight this name is of; None for other tensors."""
        return None if self.part in ("", "history") else OperandPart.of(self.part)


class OperandPart(NamedTuple):
    """One tensor of a quantized weight: a field, such as the scale, of an operand, such as rowwise.

    Attributes:
        side: `rowwise` or `columnwise`.
        field: `data`, `scale` or `amax`; empty for the operand as a whole.
    """

    side: str
    field: str = ""

    @classmethod
    def of(cls, part: str) -> OperandPart:
        """Split a part such as `rowwise.data` at its dot."""
        side, _, field = part.partition(".")
        return cls(side, field)

    @property
    def part(self) -> str:
        """Return the spelling of this part in tensor names, such as `rowwise.data`."""
        return f"{self.side}.{self.field}" if self.field else self.side


def slot_of(weight: str) -> str:
    """Return the name of a weight's delayed scaling state; empty if the name is not a weight's."""
    match = _WEIGHT.fullmatch(weight)
    return f"{match[1] or ''}quantizers.{match[2] or 0}.weight" if match else ""


def role_of(slot: str) -> str:
    """Return which GEMM operand a delayed scaling state is of, such as `input`; empty if none."""
    match = _SLOT.fullmatch(slot)
    return match[1] if match else ""


def inner_kind(kind: str, attribute: str) -> str:
    """Join `param` and `_data` to `param._data`, the kind of a tensor inside a tensor subclass."""
    return f"{kind}.{attribute}"


def whole_kind(kind: str) -> str:
    """Return the kind without a module: `used_param` for `used_param in Linear`."""
    return kind.partition(" in ")[0]


def outer_kind(kind: str) -> str:
    """Return the kind of the tensor subclass that has an inner tensor: `param` for `param._data`.

    Other kinds are returned unchanged.
    """
    return kind.partition(".")[0]


def is_inner(kind: str) -> bool:
    """Return whether a kind, such as `param._data`, is of a tensor inside a tensor subclass."""
    return "." in kind


def resident_kind(kind: str) -> str:
    """Convert a kind of weights in use, such as `used_param`, to that of stored ones, `param`."""
    return kind.removeprefix("used_")


def is_beside_masters(kind: str) -> bool:
    """Return whether a kind, such as `master_param_scale`, is optimizer state about masters."""
    return kind.startswith("master_")


def is_master(kind: str) -> bool:
    """Return whether a name in an optimizer's state, such as `master_param`, is of a master."""
    return "master" in kind and not kind.endswith("_scale")


def in_module(name: str) -> tuple[str, str]:
    """Split `blocks.0.up.weight` into the module's path and the tensor's name in it."""
    path, _, leaf = name.rpartition(".")
    return path, leaf


def from_any_module(name: str) -> list[str]:
    """Return a name, and what is left of it without one or more of its first modules."""
    words = name.split(".")
    return [".".join(words[start:]) for start in range(len(words))]


def unwrapped(name: str) -> str:
    """Return a tensor's name without wrapper modules, such as `_orig_mod`, in it.

    Args:
        name: of a tensor or a module; what follows a colon is not a part of the path. One without
            wrappers is returned as the object that it is: an engine may keep more with it.
    """
    return _WRAPPER.sub("", name).removeprefix(".") if _WRAPPER.search(name) else name


def expect_one_name_each(names: Iterable[str]) -> None:
    """Raise if two tensors' names are equal once wrapper modules, such as `_orig_mod`, are removed.

    Args:
        names: of its logical tensors, with wrappers.

    Raises:
        ValueError: a child of the user's own has the name that a wrapper's child has, and a tensor
            beside it has the name of one in it.
    """
    original_names: dict[str, str] = {}
    for name in names:
        first = original_names.setdefault(unwrapped(name), name)
        if first != name:
            wrappers = [
                wrapper for wrapper in sorted(WRAPPER_NAMES) if wrapper in f"{first} {name}"
            ]
            child = " and ".join(wrappers)
            raise ValueError(
                expected_but_got(
                    "tensors whose names differ once names of wrapper modules are left out",
                    f"{first} and {name}, which are both {unwrapped(name)} without {child}",
                    f"rename the child module {child}, or its tensors by `logical` of the engine",
                )
            )
