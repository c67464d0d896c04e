"""Find the source line in a Python call stack that an operation belongs to.

A line is the user's if it is in no installed package, wherever an installer has put that, not in
Python's library and not in this package. If the stack has none, the innermost line that is not
torch's stands for the operation.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from types import CodeType, FrameType
from typing import Any, NamedTuple

from pytest_precision.probes.lines.operations import CodeLine, Site
from pytest_precision.ranks.code.installed import PACKAGE_FOLDERS, is_installed
from pytest_precision.recorders.source_files import LOGGING, OURS, PACKAGE_ROOT, PASSING_ON, TORCH

CALLERS = tuple(
    PACKAGE_ROOT + name.replace("/", os.sep)
    for name in (
        "probes/lines/logged_run.py",
        "probes/lines/logged_script.py",
        "recorders/engine_run.py",
        "recorders/scripts/command.py",
        "recorders/scripts/script_recorder.py",
        "recorders/scripts/script.py",
        "recorders/scripts/script_file.py",
    )
)
"""Modules of these that call what is recorded; what the others compute, they compute."""

RECORDING_FOLDERS = tuple(
    PACKAGE_ROOT + room + os.sep for room in ("recorders", "probes", "ranks", "check", "plugin")
)
LIBRARY = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
GENERATED = ("<frozen", "<eval_with_key>", "<__array")
"""How names of code begin that a library generates; a user's own `exec` is `<string>`."""

GENERATED_METHODS = frozenset({"<lambda>", "__init__", "__new__", "__eq__", "__hash__", "__repr__"})
"""Names of the functions that dataclasses and named tuples make."""

BACKWARD_FILES = "_engine_run_backward"
"""The function of torch below which a stack is that of a backward."""

USER, INSTALLED, NOBODY, EDGE, OURSELVES = range(5)


class Stack(NamedTuple):
    """The source line to which a tensor operation is attributed, found in a call stack.

    Attributes:
        line: that the operation belongs to; None if there is nothing but torch.
        in_backward: whether the line is the one that called a backward, and not in it.
    """

    line: CodeLine | None
    in_backward: bool


class Frames:
    """Finds source lines in call stacks, and caches whether a function is the user's."""

    def __init__(self) -> None:
        # By identity: a function's code equals that of its copy in another file, and its hash is
        # made of all its constants whenever it is asked for. What is held here keeps its number.
        self._held: list[CodeType] = []
        self._owners: dict[int, int] = {}
        self._lines: dict[tuple[int, int, str], CodeLine] = {}
        self._sites: dict[tuple[tuple[int, int], ...], tuple[Site, ...]] = {}

    def stack(self, operator: Any = None) -> Stack:
        """Return the source line in the current call stack to which an operation is attributed.

        A tensor subclass or a mode of the user's that passes an operation on has not asked for it:
        the line that has is outside it. What it computes by itself is its own line's.

        Args:
            operator: that is being called.
        """
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(LOGGING):
            frame = frame.f_back
        called = ""
        installed: tuple[FrameType, str, bool] | None = None
        passing: FrameType | None = None
        backward = False
        while frame is not None:
            code = frame.f_code
            owner = self._owner(code)
            if owner == OURSELVES:
                return Stack(None, False)
            if owner == EDGE or (owner == USER and backward and installed is not None):
                break
            if owner == USER and _passes_on(frame, operator):
                passing = passing or frame
            elif owner == USER:
                return Stack(self._line(frame, called, is_users=True), backward)
            if owner == INSTALLED and installed is None:
                installed = frame, called, backward
            backward = backward or code.co_name == BACKWARD_FILES
            called = _public(frame) or called
            frame = frame.f_back
        if installed is None:
            line = None if passing is None else self._line(passing, "", is_users=True)
            return Stack(line, backward)
        return Stack(self._line(*installed[:2], is_users=False), installed[2])

    def sites(self) -> tuple[Site, ...]:
        """Return the lines of installed packages in the call stack, the innermost first."""
        frames: list[FrameType] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            owner = self._owner(frame.f_code)
            if owner in (INSTALLED, EDGE):
                frames.append(frame)
            if owner == EDGE:
                break
            frame = frame.f_back
        key = tuple((id(frame.f_code), frame.f_lasti) for frame in frames)
        if key not in self._sites:
            self._sites[key] = tuple(map(_site, frames))
        return self._sites[key]

    def site_of_call(self, frame: FrameType) -> Site | None:
        """Return the line of package code that called a frame's function; None if no package did.

        Of what a backward calls, no line says which operation it belongs to.
        """
        caller = frame.f_back
        while caller is not None and self._owner(caller.f_code) == NOBODY:
            if caller.f_code.co_name == BACKWARD_FILES:
                return None
            caller = caller.f_back
        if caller is None or self._owner(caller.f_code) not in (INSTALLED, EDGE):
            return None
        return _site(caller)

    def is_users(self, code: CodeType) -> bool:
        """Return whether a function is the user's, not a package's or Python's."""
        return self._owner(code) == USER

    def of_user(self, frame: FrameType) -> CodeLine | None:
        """Return the source line that a frame is at if its function is the user's; else None."""
        return self._line(frame, "", is_users=True) if self._owner(frame.f_code) == USER else None

    def _line(self, frame: FrameType, called: str, *, is_users: bool) -> CodeLine:
        key = id(frame.f_code), frame.f_lineno, called
        if key not in self._lines:
            file = frame.f_code.co_filename
            line = CodeLine(file, frame.f_lineno, frame.f_code.co_name, called, is_users)
            self._lines[key] = line
        return self._lines[key]

    def _owner(self, code: CodeType) -> int:
        owner = self._owners.get(id(code))
        if owner is None:
            self._held.append(code)
            owner = self._owners[id(code)] = _owner_of(code)
        return owner


def _site(frame: FrameType) -> Site:
    # Ranks of another commit find this package in another folder.
    return Site(frame.f_code.co_filename.removeprefix(PACKAGE_ROOT), frame.f_lineno)


def _owner_of(code: CodeType) -> int:
    file = code.co_filename
    if file == "<string>" and code.co_name in GENERATED_METHODS:
        return NOBODY
    if file in PASSING_ON or file.startswith(LOGGING):
        return NOBODY
    if file.startswith(OURS) and not file.startswith(CALLERS):
        return OURSELVES
    if file.startswith(RECORDING_FOLDERS):
        return EDGE
    if file.startswith(TORCH):
        return NOBODY
    if file.startswith(PACKAGE_ROOT):
        return INSTALLED
    # Folders for installed packages may lie in that of the library.
    of_library = file.startswith(LIBRARY) and PACKAGE_FOLDERS.isdisjoint(file.split(os.sep))
    if of_library or file.startswith(GENERATED):
        return NOBODY
    return INSTALLED if is_installed(file) else USER


def _passes_on(frame: FrameType, operator: Any) -> bool:
    """Return whether a frame is a `__torch_dispatch__` that calls the operator it was given."""
    code = frame.f_code
    if operator is None or code.co_name != "__torch_dispatch__" or code.co_argcount < 2:
        return False
    return frame.f_locals.get(code.co_varnames[1]) is operator


def _public(frame: FrameType) -> str:
    """Return a function's name, as `Class.name` for forward, step, backward; empty if internal."""
    name = frame.f_code.co_name
    if name.startswith("_") or name in WRAPPERS:
        return ""
    owner = frame.f_locals.get("self") if name in ("forward", "step", "backward") else None
    return f"{type(owner).__name__}.{name}" if owner is not None else name


WRAPPERS = frozenset(
    (
        "wrapper",
        "inner",
        "decorate_context",
        "fn",
        "apply",
        "wrapped",
        "profile_hook_step",
        "autograd_impl",
        "forward_no_grad",
    )
)
"""Names of functions that only call another one."""
