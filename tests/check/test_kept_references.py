"""A reference outlasts its check where each part of its side promises that it is pure."""

from __future__ import annotations

import contextlib
import functools
import os
import py_compile
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import reading
import torch

from pytest_precision import Cell, Parity, ParityError, command, layouts, script, workloads
from pytest_precision.matrix.declared import declares_pure
from pytest_precision.options import Settings
from pytest_precision.ranks import RankPool
from pytest_precision.ranks.code.module_files import ModuleFile
from pytest_precision.trace.cache import TraceCache

pytestmark = pytest.mark.slow

TINY = partial(workloads.mlp, width=5, depth=1)

CELL = Cell(sequence="train")


class CountingCache(TraceCache):
    """A cache of traces that counts how often a reference is recorded."""

    recordings = 0

    def keep(
        self, key: Hashable, folder: Path, modules: Iterable[ModuleFile], *, outlasts_check: bool
    ) -> None:
        """Count what was recorded."""
        self.recordings += 1
        super().keep(key, folder, modules, outlasts_check=outlasts_check)


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    """Ranks that all tests of this file share."""
    with closing(RankPool()) as pool:
        yield pool


@pytest.fixture
def traces() -> Iterator[CountingCache]:
    """A cache for each test."""
    with closing(CountingCache()) as traces:
        yield traces


Check = Callable[..., str]


@pytest.fixture
def check(pool: RankPool, traces: CountingCache) -> Check:
    """Check a candidate against a reference; return the outcome."""

    def check(
        candidate: Any,
        reference: Any,
        cell: Cell = CELL,
        workload: Any = TINY,
        *,
        pure: bool = False,
        ranks: RankPool = pool,
    ) -> str:
        parity = Parity("test", cell, Settings(pure=pure, lines="off"), ranks, traces)
        with contextlib.suppress(ParityError):
            parity.check(candidate, reference, workload=workload)
        verdict = parity.verdicts[-1]
        assert verdict.outcome in ("pass", "fail"), verdict
        return verdict.outcome

    return check


def mine(workload: Any, cell: Cell) -> Any:
    """A layout of the user's, which promises nothing."""
    return layouts.adamw(workload, cell)


@layouts.pure
def promised(workload: Any, cell: Cell) -> Any:
    """A layout of the user's with the promise."""
    return layouts.adamw(workload, cell)


class Own(workloads.mlp):
    """A workload of the user's, which promises nothing."""


@layouts.pure
class Promised(workloads.mlp):
    """A workload of the user's with the promise."""


class Inheriting(Promised):
    """A workload that inherits from one with the promise, and may do other things."""


def wraps(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function in a wrapper that has its attributes."""

    @functools.wraps(function)
    def wrapping(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapping


@pytest.mark.parametrize(
    ("reference", "workload", "sequence", "recordings"),
    [
        (layouts.adamw, TINY, "train", 1),
        (mine, TINY, "train", 2),
        (promised, TINY, "train", 1),
        (layouts.pure(partial(reading.scaled, factor=True)), TINY, "train", 1),
        (promised, partial(Own, width=5, depth=1), "train", 2),
        (promised, partial(Promised, width=5, depth=1), "train", 1),
        (layouts.adamw, partial(Inheriting, width=5, depth=1), "train", 2),
        (promised, TINY, "train-save-swap-load-train", 2),
        (layouts.adamw, TINY, "train-save-swap-load-train", 2),
    ],
    ids=[
        "built in",
        "user's",
        "promised",
        "promised partial",
        "user's workload",
        "promised workload",
        "inherited promise",
        "swap with user's",
        "swap of built in with user's",
    ],
)
def test_every_part_promises(
    check: Check,
    traces: CountingCache,
    reference: Any,
    workload: Any,
    sequence: str,
    recordings: int,
) -> None:
    """Layout, workload and, after a swap, the other layout: each must promise, or nothing is kept.

    A candidate is checked twice against one reference, which is recorded once or twice; where they
    swap, it has no promise. A subclass may override what its base has promised of itself.
    """
    own = "swap" in sequence or reference is promised
    candidate = partial(reading.scaled, factor=1.0) if own else layouts.ddp
    for _ in range(2):
        assert check(candidate, reference, Cell(sequence=sequence), workload) == "pass"
    assert traces.recordings == recordings


def test_the_ini_key_promises_it_of_all(check: Check, traces: CountingCache) -> None:
    """With `precision_pure` no part needs a promise of its own."""
    workload = partial(Own, width=5, depth=1)
    for candidate in (layouts.adamw, promised):
        assert check(candidate, mine, workload=workload, pure=True) == "pass"
    assert traces.recordings == 1
    cell = Cell(sequence="train-save-swap-load-train")
    for _ in range(2):
        assert check(promised, mine, cell, workload, pure=True) == "pass"
    assert traces.recordings == 2


def test_who_wraps_promises_anew() -> None:
    """What a wrapper copies, a subclass inherits and an attribute says is no promise of theirs."""
    assert declares_pure(promised)
    assert declares_pure(partial(partial(promised, 1), 2))
    assert declares_pure(layouts.pure(wraps(promised)))
    assert declares_pure(layouts.uses_transformer_engine(promised))
    assert declares_pure(layouts.pure(script(wraps(mine))))
    for function in (mine, wraps(promised), Inheriting, partial(wraps(promised), 1), None):
        assert not declares_pure(function)
    assert not declares_pure(layouts.uses_transformer_engine(mine))


@pytest.mark.parametrize("nothing", [None, "", "golden/llama"])
def test_what_cannot_be_called_promises_nothing(nothing: Any) -> None:
    """It is refused by its value, as where a variable in its place was never set."""
    with pytest.raises(TypeError, match=r"a layout, a workload or a script but got function="):
        layouts.pure(nothing)


def test_within_a_check_a_run_is_recorded_once(pool: RankPool, traces: CountingCache) -> None:
    """All further runs of `repeat` are held to one first run, and nothing of it stays after it."""
    with closing(RankPool("inline")) as inline:
        for ranks, runs, recordings in ((inline, 4, 1), (pool, 2, 2), (pool, 2, 3)):
            parity = Parity("test", CELL, Settings(lines="off"), ranks, traces)
            parity.repeat(mine, workload=TINY, runs=runs)
            assert traces.recordings == recordings


def test_tests_change_the_process_of_inline_ranks(check: Check, traces: CountingCache) -> None:
    """A promise is about code, and a test may patch that where its own process is the rank."""
    with closing(RankPool("inline")) as inline:
        for candidate in (layouts.ddp, promised):
            assert check(candidate, layouts.adamw, ranks=inline) == "pass"
    assert traces.recordings == 2


LAYOUT = """\
import reading
{imports}

def made(workload, cell):
    return reading.scaled(workload, cell, {factor})
"""


def rewritten(file: Path, content: str) -> None:
    """Write a file anew so that neither its size nor its time tells."""
    before = file.stat()
    file.write_text(content, encoding="utf-8")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size


@pytest.mark.parametrize("of_helper", [False, True], ids=["own module", "imported module"])
def test_an_edited_module_breaks_the_promise(
    check: Check,
    traces: CountingCache,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    of_helper: bool,
) -> None:
    """Modules that ranks import are compared by content: those of the side and what they import.

    A file that is written anew with the size and the time of the one before is imported anew on
    new ranks, from its source, and the reference is recorded again.
    """
    monkeypatch.syspath_prepend(tmp_path)
    name = f"edited_{'helper' if of_helper else 'layout'}"
    file = tmp_path / f"{name}.py"
    if of_helper:
        file.write_text("FACTOR = 1.0", encoding="utf-8")
        (tmp_path / "importing.py").write_text(
            LAYOUT.format(imports=f"import {name}", factor=f"{name}.FACTOR"), encoding="utf-8"
        )
        import importing as module  # type: ignore[import-not-found]
    else:
        file.write_text(LAYOUT.format(imports="", factor="1.0"), encoding="utf-8")
        import edited_layout as module  # type: ignore[import-not-found]
    candidates = [partial(reading.scaled, factor=factor) for factor in (1.0, 2.0)]
    assert check(candidates[0], module.made, pure=True) == "pass"
    assert check(layouts.adamw, module.made, pure=True) == "pass"
    assert traces.recordings == 1
    rewritten(file, file.read_text(encoding="utf-8").replace("1.0", "2.0"))
    assert check(candidates[0], module.made, pure=True) == "fail"
    assert check(candidates[1], module.made, pure=True) == "pass"
    assert traces.recordings == 2


def test_bytecode_of_an_earlier_source_is_not_run(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytecode that is older than a source of its size and second is not taken for that source."""
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "helper_of_two.py"
    file.write_text("FACTOR = 1.0", encoding="utf-8")
    compiled = Path(py_compile.compile(str(file)))  # type: ignore[arg-type]
    file.write_text("FACTOR = 2.0", encoding="utf-8")
    written = file.stat()
    # The bytecode names size and seconds of the source, which are those of the new one.
    content = bytearray(compiled.read_bytes())
    content[8:12] = int(written.st_mtime).to_bytes(4, "little")
    compiled.write_bytes(content)
    os.utime(compiled, ns=(written.st_mtime_ns, written.st_mtime_ns - 1))
    candidate = partial(reading.scaled, factor=2.0)
    assert check(candidate, partial(reading.from_helper, file=str(file))) == "pass"


@pytest.mark.parametrize("pure", [False, True])
def test_a_script_that_is_written_anew(
    check: Check, traces: CountingCache, tmp_path: Path, pure: bool
) -> None:
    """A script file is one of the user's, whose command promises nothing by itself.

    With the ini key its reference is kept, and recorded again once the file has changed.
    """
    new, old = tmp_path / "new.py", tmp_path / "old.py"
    new.write_text(reading.SCRIPT.format(lr=0.01), encoding="utf-8")
    for lr, expected in ((0.01, "pass"), (0.02, "fail")):
        old.write_text(reading.SCRIPT.format(lr=lr), encoding="utf-8")
        for arguments in ((), ("unread",)):
            outcome = check(command(new, *arguments), command(old), workload=None, pure=pure)
            assert outcome == expected
    assert traces.recordings == (2 if pure else 4)


def test_another_import_path_is_another_reference(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same name of a helper is another module where `sys.path` finds another file.

    That holds with the promise, too, for the reference and for kept ranks.
    """
    reference = partial(reading.from_helper, file="helper_on_path")
    for factor in (1.0, 2.0):
        folder = tmp_path / str(factor)
        folder.mkdir()
        (folder / "helper_on_path.py").write_text(f"FACTOR = {factor}", encoding="utf-8")
        with monkeypatch.context() as patch:
            patch.syspath_prepend(folder)
            candidate = partial(reading.scaled, factor=factor)
            assert check(candidate, reference, pure=True) == "pass"


def of_axis(workload: Any, cell: Cell) -> Any:
    """A buffer is made of the value of an axis."""
    engine = layouts.adamw(workload, cell)
    engine.model.register_buffer("x", torch.tensor(cell.v))
    return engine


def of_constant(workload: Any, cell: Cell, value: object) -> Any:
    """A buffer is made of a value that is given."""
    engine = layouts.adamw(workload, cell)
    engine.model.register_buffer("x", torch.tensor(value))
    return engine


@pytest.mark.parametrize("values", [(1, 1.0, True), (0.0, -0.0)], ids=["types", "signs"])
def test_equal_values_of_an_axis_are_different_cells(
    check: Check, values: tuple[object, ...]
) -> None:
    """A reference of the axis value 1 serves neither 1.0 nor True, and one of 0.0 not -0.0."""
    for value in values:
        cell = Cell(sequence="train", extra=(("v", value),))
        assert check(partial(of_constant, value=value), of_axis, cell, pure=True) == "pass"
        other = partial(of_constant, value=values[0])
        expected = "pass" if value is values[0] else "fail"
        assert check(other, of_axis, cell, pure=True) == expected


def test_cells_are_equal_by_type_and_text() -> None:
    """Cells with 1, 1.0 and True, or 0.0 and -0.0, are neither equal nor one key."""
    cells = [Cell(extra=(("v", value),)) for value in (1, 1.0, True, 0.0, -0.0, "1", None)]
    assert len(set(cells)) == len(cells)
    assert [cell == other for cell in cells for other in cells].count(True) == len(cells)
    assert cells[0] == Cell(extra=(("v", 1),))
    assert cells[0] != "1"


def test_the_same_layout_on_equal_values_is_compared(pool: RankPool, traces: CountingCache) -> None:
    """A reference cell with 1.0 in the place of 1 is another cell, not the same one again."""
    parity = Parity("test", Cell(sequence="train", extra=(("v", 1),)), Settings(), pool, traces)
    with pytest.raises(ParityError, match="int64 here, float32 in the reference"):
        parity.check(of_axis, of_axis, workload=TINY, reference_cell=parity.cell.replace(v=1.0))
