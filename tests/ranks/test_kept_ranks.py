"""Ranks with code of the user's serve one check, unless it is promised to be pure."""

from __future__ import annotations

import importlib
import os
import zipfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import in_this_process  # noqa: F401
import psutil
import pytest

from pytest_precision.ranks import ImportPath, RankPool
from pytest_precision.ranks.needs import Needs


@pytest.fixture
def pool() -> Iterator[RankPool]:
    """Ranks of one test."""
    with closing(RankPool(timeout=60)) as pool:
        yield pool


OURS = Needs()
USERS = replace(OURS, code=(ImportPath.of(os.getpid),))
PROMISED = replace(USERS, pure=True)


@pytest.mark.parametrize(
    ("needs", "kept"),
    [(OURS, True), (USERS, False), (PROMISED, True)],
    ids=["ours", "users", "promised"],
)
def test_a_group_outlasts_its_check(pool: RankPool, needs: Needs, kept: bool) -> None:
    """Within a check all jobs of one side have the same ranks; after it, only promised ones do.

    Ranks that run this package's code alone are kept, too. Others have ended when the next check
    begins.
    """
    first, again = (pool.run(1, os.getpid, needs=needs) for _ in range(2))
    assert first == again
    pool.end_check()
    assert psutil.pid_exists(first[0]) is kept
    assert (pool.run(1, os.getpid, needs=needs) == first) is kept


def test_groups_of_ended_checks_do_not_pile_up(pool: RankPool) -> None:
    """After many checks of many sides no rank is left that no check will use."""
    numbers = []
    for check in range(3):
        for side in "ab":
            numbers += pool.run(1, os.getpid, needs=replace(USERS, may_leave=(f"{side}{check}",)))
        assert all(map(psutil.pid_exists, numbers[-2:]))
        pool.end_check()
    assert len({*numbers}) == 6
    assert not any(map(psutil.pid_exists, numbers))


def saying(name: str) -> str:
    """Return what a module of the user's says, and the process that it says it in."""
    module = importlib.import_module(name)
    return f"{module.WORD} {os.getpid()}"


def written(folder: Path, kind: str, word: str) -> None:
    """Write a module with a word, as a file or in an archive."""
    text = f"WORD = {word!r}"
    if kind == "file":
        (folder / "saying_file.py").write_text(text, encoding="utf-8")
    else:
        with zipfile.ZipFile(folder / "words.zip", "w") as archive:
            archive.writestr("saying_zip.py", text)


@pytest.mark.parametrize("kind", ["file", "zip"])
def test_an_edited_module_ends_kept_ranks(
    pool: RankPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A kept group serves no other job once a module that it has imported has other content.

    Content decides, and neither time nor size; a module in an archive is as the archive is.
    """
    written(tmp_path, kind, "one")
    monkeypatch.syspath_prepend(tmp_path / "words.zip" if kind == "zip" else tmp_path)
    name = f"saying_{kind}"
    needs = replace(PROMISED, code=(ImportPath(name, ""),))
    first, again = (pool.run(1, saying, name, needs=needs) for _ in range(2))
    assert first == again
    pool.end_check()
    (file,) = [file for file in tmp_path.iterdir() if file.is_file()]
    before = file.stat()
    written(tmp_path, kind, "two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size
    assert pool.run(1, saying, name, needs=needs)[0].startswith("two ")


SUITE = """
    import os

    import pytest

    from pytest_precision import layouts

    def number():
        return os.getpid()

    @layouts.pure
    def promised():
        return os.getpid()

    @pytest.mark.world_size(1)
    def test_numbers(ranks):
        for function in (number, promised):
            print(function.__name__, len({ranks.run(function)[0] for _ in range(2)}))
"""


@pytest.mark.parametrize("pure", [False, True])
def test_each_call_of_the_fixture_is_a_check(pytester: pytest.Pytester, pure: bool) -> None:
    """`ranks.run` gets new ranks each time for a function of the user's that promises nothing.

    One that does, by itself or by the ini key, gets those of the call before.
    """
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_inprocess("-s", f"-oprecision_pure={str(pure).lower()}")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"*number {1 if pure else 2}", "promised 1"])
