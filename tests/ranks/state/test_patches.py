"""What `monkeypatch` and `unittest.mock` have changed and not put back, of any target."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import SimpleNamespace
from unittest import mock

import pytest

from pytest_precision.ranks.state.patches import note_patches, pending_patches


class Target:
    """A class whose attribute and whose object are patched."""

    attribute = 1.0

    def method(self) -> None: ...


OBJECT, TABLE = Target(), {"key": 1.0}
HERE = f"{__name__}.Target.attribute"


@pytest.fixture
def patches() -> Iterator[pytest.MonkeyPatch]:
    """A `MonkeyPatch` that is noted, also where this session runs no cells."""
    note_patches()
    with pytest.MonkeyPatch.context() as made:
        yield made


def words() -> list[str]:
    return [f"{patch}".removeprefix(f"{__name__}.") for patch in pending_patches()]


def test_a_change_is_pending_until_its_value_is_back(patches: pytest.MonkeyPatch) -> None:
    """By `undo`, by hand and by a later patch alike; what it says is the value before and after."""
    patches.setattr(Target, "attribute", 2.0)
    patches.setitem(TABLE, "key", 2.0)
    assert words() == ["Target.attribute was 1.0, is 2.0", "TABLE['key'] was 1.0, is 2.0"]
    Target.attribute = 1.0
    patches.setitem(TABLE, "key", 1.0)
    assert words() == []
    patches.setattr(OBJECT, "method", print)
    patches.delattr(Target, "attribute")
    patches.delitem(TABLE, "key")
    assert words() == [
        "Target.attribute was 1.0, is absent",
        f"OBJECT.method was {__name__}:Target.method, is builtins:print",
        "TABLE['key'] was 1.0, is absent",
    ]
    patches.undo()
    assert words() == []


def test_a_change_outlives_the_object_that_made_it() -> None:
    """Nobody has the `MonkeyPatch` any more, and what it changed is still changed."""
    note_patches()
    pytest.MonkeyPatch().setattr(Target, "attribute", 3.0)
    assert words() == ["Target.attribute was 1.0, is 3.0"]
    Target.attribute = 1.0
    assert words() == []


class Settings(dict[str, float]):
    """Keeps attributes as items, and raises a wrong error for what it has not."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__
    __delattr__ = dict.__delitem__


SETTINGS, MOCK = Settings(key=1.0), mock.MagicMock(key=1.0)
MADE_WHEN_READ: defaultdict[str, float] = defaultdict(float, key=1.0)


def test_an_object_that_keeps_attributes_elsewhere(patches: pytest.MonkeyPatch) -> None:
    """Its attribute is another one though its `__dict__` is empty, and it is named nonetheless."""
    patches.setattr(SETTINGS, "key", 2.0)
    assert [text.endswith("is 2.0") for text in words()] == [True]
    SETTINGS["key"] = 1.0
    patches.setitem(SETTINGS, "key", 3.0)
    assert "SETTINGS['key'] was 1.0, is 3.0" in words()


def test_a_mock_is_a_target_as_others_are(patches: pytest.MonkeyPatch) -> None:
    """It may stand for what a side computes with; only the tool's own code is not looked at."""
    patches.setattr(MOCK, "key", 2.0)
    assert words() == ["MOCK.key was 1.0, is 2.0"]
    patches.setattr(mock, "FILTER_DIR", not mock.FILTER_DIR)
    assert len(words()) == 1


def test_no_item_is_made_by_a_look(patches: pytest.MonkeyPatch) -> None:
    """A mapping that makes an item for a key that it lacks is as it was, also once it is restored.

    Its own default would hide that an item is gone, and stay in the user's mapping.
    """
    patches.delitem(MADE_WHEN_READ, "key")
    with mock.patch.dict(MADE_WHEN_READ, new=2.0):
        assert words() == [
            "MADE_WHEN_READ['key'] was 1.0, is absent",
            "MADE_WHEN_READ['new'] was absent, is 2.0",
        ]
    assert MADE_WHEN_READ == {}


MOCKS = {
    "patch": lambda: mock.patch(HERE, 3.0),
    "object": lambda: mock.patch.object(OBJECT, "attribute", 3.0),
    "multiple": lambda: mock.patch.multiple(Target, attribute=3.0, method=print),
    "new": lambda: mock.patch.object(Target, "new", 3.0, create=True),
    "dict": lambda: mock.patch.dict(TABLE, key=3.0),
    "dict of a module": lambda: mock.patch.dict(f"{__name__}.TABLE", {"key": 3.0}, clear=True),
}


@pytest.mark.parametrize("name", MOCKS)
def test_a_patcher_is_pending_while_it_is_started(name: str) -> None:
    """As a block, by `start` and as a decorator; one that only exists has changed nothing."""
    note_patches()
    made: AbstractContextManager[object] = MOCKS[name]()
    assert words() == []
    with made:
        inside = words()
    assert len(inside) == (2 if name == "multiple" else 1)
    assert any("is 3.0" in change for change in inside)
    assert words() == []
    patcher = MOCKS[name]()
    patcher.start()
    started = words()
    patcher.stop()
    decorated = MOCKS[name]()(words)()
    assert sorted(started) == sorted(decorated) == sorted(inside)
    assert words() == []


def test_what_is_done_within_a_patched_mapping_is_pending() -> None:
    """`patch.dict` puts back what was assigned in its block, so that it is a change of its own."""
    note_patches()
    with mock.patch.dict(TABLE):
        assert words() == []
        TABLE["key"] = 3.0
        assert words() == ["TABLE['key'] was 1.0, is 3.0"]
    assert words() == []


def test_variables_directory_and_path_reach_ranks(
    patches: pytest.MonkeyPatch, tmp_path: object
) -> None:
    """Each job takes them along, however they were set; a method of `os.environ` it does not."""
    patches.setenv("PLANTED", "1")
    patches.delenv("PATH")
    patches.chdir(str(tmp_path))
    patches.syspath_prepend(str(tmp_path))
    patches.setattr(sys, "path", [*sys.path])
    with (
        mock.patch.dict(os.environ, PLANTED="2"),
        mock.patch("os.environ", {"PLANTED": "3"}),
        pytest.MonkeyPatch.context() as inner,
    ):
        inner.setenv("PLANTED", "4")
        assert words() == []
    patches.setattr(os.environ, "get", print, raising=False)
    assert words() == ["os.environ.get was collections.abc:Mapping.get, is builtins:print"]


def test_both_tools_may_be_used_on_themselves(
    patches: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Pytest patches its own configuration, pytest-mock the asserts of mocks; no side uses them."""
    patches.setattr(request.config, "planted", 1, raising=False)
    asserts = mock.patch("unittest.mock.NonCallableMock.assert_called", print)
    with asserts:
        assert words() == []
    patches.setattr(pytest, "planted", 1, raising=False)
    assert words() == ["pytest.planted was absent, is 1"]


def test_values_are_compared_without_their_own_code(patches: pytest.MonkeyPatch) -> None:
    """`==` and `repr` of an object may do anything: other objects differ, and have some words."""

    class Wild:
        def __eq__(self, other: object) -> bool:
            raise AssertionError

        __hash__ = object.__hash__

        def __repr__(self) -> str:
            raise AssertionError

    wild = Wild()
    patches.setattr(Target, "attribute", wild)
    (words_of_wild,) = words()
    assert "is <" in words_of_wild
    Target.attribute = 1.0
    holder = SimpleNamespace(pair=(1, wild))
    patches.setattr(holder, "pair", (1, wild))
    assert words() == []
    patches.setattr(holder, "pair", (1, Wild()))
    assert len(words()) == 1
