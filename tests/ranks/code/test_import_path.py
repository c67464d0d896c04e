"""ImportPath: what has one, what is refused, and how it is found again in another process."""

from __future__ import annotations

import functools
import importlib.util
import math
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_precision.ranks import ImportPath


def collect(*args, **kwargs):
    return args, kwargs


class Maker:
    def __init__(self, size=1):
        self.size = size

    def method(self):
        return self.size

    def __call__(self):
        return self.size

    @staticmethod
    def static():
        return "static"


class OnlyHere:
    def __reduce__(self):
        raise ValueError("not for sale")


class Fragile:
    def __reduce__(self):
        return (collect_nothing, (1,))


def collect_nothing():
    return None


renamed = collect_nothing
collect_nothing_again = functools.wraps(collect_nothing)(lambda: None)


@pytest.mark.parametrize("function", [collect, Maker, Maker.static, math.sqrt, len])
def test_a_module_level_callable_comes_back_as_itself(function):
    """What has an import path resolves to the same object, also after a trip by pickle."""
    path = pickle.loads(pickle.dumps(ImportPath.of(function)))
    assert path.resolve() is function


def test_an_import_path_is_given_back_as_it_is():
    """Callers need not ask which of the two they hold."""
    path = ImportPath.of(collect)
    assert ImportPath.of(path) is path


@settings(max_examples=30)
@given(st.lists(st.integers()), st.dictionaries(st.sampled_from("abc"), st.text()), st.text())
def test_bound_arguments_are_those_of_partial(args, kwargs, later):
    """Binding twice calls the function as two functools.partial would."""
    expected = functools.partial(functools.partial(collect, *args, **kwargs), later, b=later)()
    path = ImportPath.of(functools.partial(collect, *args, **kwargs)).bind(later, b=later)
    assert path.resolve()() == expected


def test_text_is_module_and_name():
    """The text is what a report shows: module, name, and bound arguments where there are any."""
    assert str(ImportPath.of(Maker.static)) == f"{__name__}:Maker.static"
    path = ImportPath.of(functools.partial(collect, 3, make=Maker, name="x"))
    assert str(path) == f"{__name__}:collect(3, make={__name__}:Maker, name='x')"


def test_equal_paths_are_one_key():
    """Two partials of the same function and arguments are equal and hash alike; others differ."""
    one, two, other = (ImportPath.of(functools.partial(collect, a=a)) for a in (1, 1, 2))
    assert {one: "found"}[two] == "found"
    assert one != other
    assert one.bind(a=2) == other


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda: None, "write it with def"),
        (Maker().method, "a bound method carries its object"),
        (Maker(), "pass its class"),
        ("collect", "it cannot be called"),
        (collect_nothing_again, "give it a name of its own"),
    ],
)
def test_what_has_no_import_path_is_refused(function, why):
    """The message has the caller's word for it, the reason, and what to do."""
    with pytest.raises(TypeError, match=f"but got layout=.*{why}"):
        ImportPath.of(function, "layout")


def test_a_local_function_is_refused():
    """A closure cannot be imported, whatever it closes over."""

    def local():
        return None

    with pytest.raises(TypeError, match=r"but got candidate=.*local function.* move it out"):
        ImportPath.of(local)


def test_what_was_typed_in_is_refused(monkeypatch):
    """`python -c` and the prompt have no file that a rank could import."""
    main = ModuleType("__main__")
    exec("def typed(): pass", main.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", main)
    with pytest.raises(TypeError, match="has no file; write it into a module"):
        ImportPath.of(main.typed)


@pytest.mark.parametrize(
    ("partial", "word"),
    [
        (functools.partial(collect, 1, OnlyHere()), "argument 1"),
        (functools.partial(collect, 1, hidden=OnlyHere()), "hidden"),
    ],
)
def test_an_argument_that_does_not_pickle_is_named(partial, word):
    """The argument is named, and the error of its own code is passed on."""
    with pytest.raises(TypeError, match=rf"but got {word}=.*\(OnlyHere\).*not for sale"):
        ImportPath.of(partial)


def test_an_argument_that_does_not_unpickle_is_named():
    """Some values pickle but do not come back: the rank's message names them."""
    path = ImportPath.of(functools.partial(collect, good=1, bad=Fragile()))
    with pytest.raises(TypeError, match=rf"but bad of {__name__}:collect does not: TypeError"):
        path.resolve()


def load_as_pytest_does(name: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Imports a file under a name that no search path leads to, as `--import-mode=importlib`."""
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def forget(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Makes this process one that has not imported the modules, and cleans up after the test."""
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]


def test_a_file_that_no_name_leads_to_is_imported(tmp_path, monkeypatch):
    """Under the name that pytest gave it, so that its classes pickle under that name."""
    file = tmp_path / "deep.py"
    file.write_text("class Layout: pass\n")
    module = load_as_pytest_does("far.away.deep", file, monkeypatch)
    path = ImportPath.of(module.Layout)
    forget(monkeypatch, "far", "far.away", "far.away.deep")
    found = path.resolve()
    assert found is not module.Layout
    assert isinstance(pickle.loads(pickle.dumps(found())), found)


def test_a_file_that_no_name_leads_to_has_its_package(tmp_path, monkeypatch):
    """Relative imports work: the packages above the file are found from where it lies."""
    package = tmp_path / "suite" / "unit"
    package.mkdir(parents=True)
    (tmp_path / "suite" / "__init__.py").write_text("WORD = 'suite'\n")
    (package / "helper.py").write_text("WORD = 'helper'\n")
    file = package / "layouts.py"
    file.write_text(
        "from .. import WORD as a\nfrom .helper import WORD as b\ndef f(): return a + b\n"
    )
    path = ImportPath("suite.unit.layouts", "f", str(file))
    forget(monkeypatch, "suite", "suite.unit", "suite.unit.helper", "suite.unit.layouts")
    assert path.resolve()() == "suitehelper"


def test_of_two_modules_with_one_name_the_file_decides(tmp_path, monkeypatch):
    """A rank that lives across tests may have imported another file of that name."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "twin.py").write_text(f"def where(): return {folder!r}\n")
    forget(monkeypatch, "twin")
    for folder in ("one", "two", "one"):
        path = ImportPath("twin", "where", str(tmp_path / folder / "twin.py"))
        assert path.resolve()() == folder


def test_a_name_that_leads_to_another_file_is_not_followed(tmp_path, monkeypatch):
    """The search path may hold a file of that name which is not the one that was meant."""
    (tmp_path / "twin.py").write_text("def where(): return 'on the path'\n")
    meant = tmp_path / "elsewhere.py"
    meant.write_text("def where(): return 'elsewhere'\n")
    monkeypatch.syspath_prepend(tmp_path)
    forget(monkeypatch, "twin")
    assert ImportPath("twin", "where", str(meant)).resolve()() == "elsewhere"


def test_a_script_is_imported_without_its_main_part(tmp_path):
    """A function of `__main__` is found in the script, whose main part does not run again."""
    script = tmp_path / "script"
    script.write_text(
        "import pickle, subprocess, sys\n"
        "from pytest_precision.ranks import ImportPath\n"
        "def f(): return __name__\n"
        "if __name__ == '__main__':\n"
        "    code = 'import pickle, sys; print(pickle.load(sys.stdin.buffer).resolve()())'\n"
        "    data = pickle.dumps(ImportPath.of(f))\n"
        "    print('once')\n"
        "    sys.stdout.flush()\n"
        "    subprocess.run([sys.executable, '-c', code], input=data, check=True)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["once", "__mp_main__"]


def test_the_error_of_a_module_passes_through(tmp_path, monkeypatch):
    """A module that fails is not half there afterwards, and its own error is what is seen."""
    file = tmp_path / "broken.py"
    file.write_text("raise KeyError('planted')\n")
    forget(monkeypatch, "broken")
    with pytest.raises(KeyError, match="planted"):
        ImportPath("broken", "f", str(file)).resolve()
    assert "broken" not in sys.modules
