"""Options: every source, which of them wins, and what a bad value is told."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_precision.options import MARKER_OPTIONS, OPTIONS, Settings, read_options, with_marker
from pytest_precision.plugin import hooks

VALUES: dict[str, tuple[str, Any]] = {
    "matrix": ("true", True),
    "select": ("precision=bf16,fp32", (("precision", ("bf16", "fp32")),)),
    "coverage": ("pairwise", "pairwise"),
    "shard": ("2/3", (2, 3)),
    "device": ("cpu", "cpu"),
    "backend": ("native", "native"),
    "ranks": ("fresh", "fresh"),
    "timeout": ("7.5", 7.5),
    "report": ("/somewhere/else", Path("/somewhere/else")),
    "report_host": ("true", True),
    "strict_isolation": ("true", True),
    "ranks_per_device": ("2", 2),
    "may_leave": ("environment variable A", ("environment variable A",)),
    "pure": ("true", True),
    "probes": ("none", "none"),
    "require": ("true", True),
    "jitter": ("3", 3),
    "fuzz": ("20", 20),
    "lines": ("off", "off"),
    "deterministic": ("warn", "warn"),
    "against": ("HEAD~1", "HEAD~1"),
    "against_python": ("/opt/bin/python", Path("/opt/bin/python")),
    "against_build": ("make all", "make all"),
    "drift": ("report", "report"),
    "baseline": ("check", "check"),
    "baseline_dir": ("/kept", Path("/kept")),
    "preload": ("megatron.core", ("megatron.core",)),
    "te": ("off", "off"),
}

OTHERS = {
    "select": "precision=bf8",
    "coverage": "smoke",
    "shard": "1/3",
    "device": "cuda",
    "backend": "emulated",
    "ranks": "inline",
    "timeout": "8",
    "report": "/yet/another",
    "ranks_per_device": "3",
    "may_leave": "umask",
    "probes": "all",
    "jitter": "5",
    "fuzz": "7",
    "against": "main",
    "against_python": "/opt/other/bin/python",
    "against_build": "make",
    "drift": "fail",
    "baseline": "update",
    "baseline_dir": "/other",
    "preload": "torchao.optim",
    "lines": "auto",
    "deterministic": "error",
    "te": "cpu",
}

BAD = {
    "select": ["precision", "=bf16", "precision=", "precision=bf16,,fp32"],
    "coverage": ["al", "Full"],
    "shard": ["0/2", "3/2", "2", "1/2/3", "a/b", "1/0", "-1/2"],
    "device": ["tpu"],
    "backend": ["te"],
    "ranks": ["kept"],
    "timeout": ["0", "-1", "nan", "inf", "soon", "1000001", "1e+300"],
    "report": [],
    "jitter": ["0", "-1", "often", "1.5"],
    "fuzz": ["0", "many"],
    "ranks_per_device": ["0", "-1", "1.5", "all"],
    "against": ["-x", "--help"],
    "drift": ["pass", "true"],
    "baseline": ["keep", "true"],
    "may_leave": ["[", "umask[", "[!]"],
    "preload": ["megatron-core", "megatron/core", "megatron."],
    "lines": ["on", "true"],
    "probes": ["off", "None"],
    "deterministic": ["off", "warn_only"],
    "te": ["gpu", "on"],
}

OPTION = {option.name: option for option in OPTIONS}

each_option = pytest.mark.parametrize("name", VALUES)

Give = Callable[[str, str], list[str]]


@pytest.fixture(autouse=True)
def _this_plugin_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of what a session with all installed plugins takes to start is theirs."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", hooks.__name__)


@pytest.fixture(params=["command line", "environment", "ini"])
def give(
    request: pytest.FixtureRequest, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> Give:
    """Give an option in one of the sources; returns arguments for pytest."""

    def give(name: str, text: str) -> list[str]:
        if request.param == "ini":
            pytester.makeini(f"[pytest]\n{OPTION[name].key} = {text}")
        elif request.param == "environment":
            monkeypatch.setenv(OPTION[name].variable, text)
        elif OPTION[name].ini_type == "bool":
            return [OPTION[name].flag]
        else:
            return [f"{OPTION[name].flag}={text}"]
        return []

    return give


def setting(pytester: pytest.Pytester, name: str, *args: str) -> Any:
    return getattr(read_options(pytester.parseconfig(*args)), OPTION[name].field)


def test_names() -> None:
    """The command line is a contract: options are added, not renamed."""
    assert list(VALUES) == [option.name for option in OPTIONS]
    flags = [f"--precision-{name}".replace("_", "-") for name in VALUES]
    assert [option.flag for option in OPTIONS] == flags
    assert set(MARKER_OPTIONS) == {
        "timeout",
        "coverage",
        "device",
        "backend",
        "ranks",
        "jitter",
        "fuzz",
        "mutate",
        "lines",
        "deterministic",
        "drift",
    }


def test_defaults(pytester: pytest.Pytester) -> None:
    """Without any source every option has its default."""
    assert read_options(pytester.parseconfig()) == Settings()


@each_option
def test_every_source(name: str, give: Give, pytester: pytest.Pytester) -> None:
    """Every option can be given in every source."""
    text, value = VALUES[name]
    assert setting(pytester, name, *give(name, text)) == value


@pytest.mark.parametrize("name", [name for name, texts in BAD.items() if texts])
def test_bad_value(name: str, give: Give, pytester: pytest.Pytester) -> None:
    """A bad value is a usage error with value, source, what is known, and the next step."""
    for text in BAD[name]:
        expect_refused(name, text, give, pytester)


def expect_refused(name: str, text: str, give: Give, pytester: pytest.Pytester) -> None:
    """Expect the whole message about one value in one of the sources."""
    args = give(name, text)
    with pytest.raises(pytest.UsageError) as refusal:
        setting(pytester, name, *args)
    option, message = OPTION[name], str(refusal.value)
    assert f"expected {option.expected} but got " in message
    assert text in message
    assert message.endswith(f"the default, {option.default}")
    assert any(
        words in message
        for words in (
            f"command line: expected {option.expected} but got {option.flag}=",
            f"environment: expected {option.expected} but got {option.variable}=",
            f"{pytester.path / 'tox.ini'}: expected {option.expected} but got {option.key}",
        )
    )


def test_bad_flag(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag is true or false wherever it takes a value."""
    pytester.makeini("[pytest]\nprecision_matrix = maybe")
    with pytest.raises(pytest.UsageError, match=r"tox.ini: expected true or false .*'maybe'"):
        setting(pytester, "matrix")
    monkeypatch.setenv("PRECISION_MATRIX", "2")
    with pytest.raises(pytest.UsageError, match=r"environment: .* got PRECISION_MATRIX='2'"):
        setting(pytester, "matrix")


@pytest.mark.parametrize("name", OTHERS)
def test_precedence(name: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Command line beats environment beats ini."""
    option, (text, value) = OPTION[name], VALUES[name]
    pytester.makeini(f"[pytest]\n{option.key} = {OTHERS[name]}")
    before = setting(pytester, name)
    monkeypatch.setenv(option.variable, text)
    assert setting(pytester, name) == value != before
    assert setting(pytester, name, f"{option.flag}={OTHERS[name]}") == before


def test_precedence_of_the_flag(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment can switch off what an ini file switches on; the command line wins."""
    pytester.makeini("[pytest]\nprecision_matrix = true")
    assert setting(pytester, "matrix") is True
    monkeypatch.setenv("PRECISION_MATRIX", "0")
    assert setting(pytester, "matrix") is False
    assert setting(pytester, "matrix", "--precision-matrix") is True


def test_several_selections(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The selection is repeatable on the command line, and a list elsewhere."""
    both = (("precision", ("bf16",)), ("world_size", ("1", "2")))
    args = ["--precision-select=precision=bf16", "--precision-select=world_size=1,2"]
    assert setting(pytester, "select", *args) == both
    monkeypatch.setenv("PRECISION_SELECT", "precision=bf16 world_size=1,2")
    assert setting(pytester, "select") == both
    monkeypatch.delenv("PRECISION_SELECT")
    pytester.makeini("[pytest]\nprecision_select =\n  precision=bf16\n  world_size=1,2")
    assert setting(pytester, "select") == both


@each_option
def test_empty_variable(
    name: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable that is set but empty is refused: what was to be in it was never set."""
    monkeypatch.setenv(OPTION[name].variable, "")
    with pytest.raises(pytest.UsageError, match=f"{OPTION[name].variable}=''"):
        setting(pytester, name)


@each_option
def test_empty_flag(name: str, pytester: pytest.Pytester) -> None:
    """So is a flag without a value after its `=`, and an ini entry that is no list."""
    option = OPTION[name]
    if option.ini_type != "bool":
        with pytest.raises(pytest.UsageError, match=f"expected {re.escape(option.expected)}"):
            setting(pytester, name, f"{option.flag}=")
    if option.ini_type == "string":
        with pytest.raises(pytest.UsageError, match=f"{option.key}=''"):
            setting(pytester, name, "-o", f"{option.key}=")


def test_report_folder(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative folder is relative to where it was written: the ini file, or the shell."""
    pytester.makeini("[pytest]\nprecision_report = out")
    inner = pytester.mkdir("inner")
    monkeypatch.chdir(inner)
    assert setting(pytester, "report") == pytester.path / "out"
    assert setting(pytester, "report", "--precision-report=there") == inner / "there"


def test_typed_ini(pytester: pytest.Pytester) -> None:
    """In pyproject.toml values are written as strings, numbers and booleans alike."""
    pytester.makepyprojecttoml(
        """
        [tool.pytest.ini_options]
        precision_timeout = 120
        precision_matrix = true
        precision_shard = "1/2"
        precision_select = ["precision=bf16"]
        """
    )
    settings = read_options(pytester.parseconfig())
    assert (settings.timeout, settings.enabled, settings.shard) == (120.0, True, (1, 2))
    assert settings.select == (("precision", ("bf16",)),)


@pytest.mark.skipif(pytest.version_tuple < (9,), reason="pytest.toml is of pytest 9")
def test_native_toml(pytester: pytest.Pytester) -> None:
    """In pytest.toml values have types of their own."""
    path = pytester.path / "pytest.toml"
    path.write_text("[pytest]\nprecision_timeout = 120\nprecision_matrix = true\n")
    settings = read_options(pytester.parseconfig())
    assert (settings.timeout, settings.enabled) == (120.0, True)
    path.write_text('[pytest]\nprecision_timeout = "soon"\n')
    with pytest.raises(pytest.UsageError, match=r"number of seconds .* but got precision_timeout"):
        read_options(pytester.parseconfig())


@pytest.mark.parametrize("name", [name for name in MARKER_OPTIONS if name in VALUES])
def test_marker_beats_all(name: str) -> None:
    """A marker's options replace those of the session; its axes are left alone."""
    text, value = VALUES[name]
    before = Settings(coverage="smoke", timeout=1.0)
    after = with_marker(before, {name: text, "precision": ["bf16"]}, "test")
    assert getattr(after, name) == value != getattr(before, name)
    assert getattr(with_marker(before, {}, "test"), name) == getattr(before, name)


@pytest.mark.parametrize(
    ("keywords", "got"),
    [
        ({"timeout": [1, 2]}, "got timeout=[1, 2] (list)"),
        ({"timeout": True}, "got timeout=True (bool)"),
        ({"coverage": "al"}, "got coverage='al' (str)"),
        ({"device": None}, "got device=None (NoneType)"),
    ],
)
def test_bad_marker_option(keywords: dict[str, object], got: str) -> None:
    """A bad value in a marker is a usage error with the test that has the marker."""
    with pytest.raises(pytest.UsageError) as refusal:
        with_marker(Settings(), keywords, "test_a.py::test_a")
    assert str(refusal.value).startswith("test_a.py::test_a: expected ")
    assert got in str(refusal.value)


def test_what_repeats_a_check_has_a_build_with_a_commit_only() -> None:
    """The ini file of a repository may name it for every session."""
    build = Settings(against_build="make")
    assert build.of_repeat == ""
    assert "against_build=make" in replace(build, against="main").of_repeat


def test_what_repeats_a_check_has_the_options_that_add_gates() -> None:
    """Without them, a check that a race failed passes."""
    assert Settings(jitter=2, baseline="check").of_repeat == (
        "--precision-jitter=2 --precision-baseline=check"
    )


def test_marker_takes_numbers() -> None:
    """A timeout may be written as a number."""
    assert with_marker(Settings(), {"timeout": 5}, "test").timeout == 5.0


def test_a_former_option_warns_and_changes_nothing(
    pytester: pytest.Pytester, recwarn: pytest.WarningsRecorder
) -> None:
    """A session whose files still have it runs, and says so; also where a marker has it."""
    args = ["--precision-mutate", "--precision-min-kill=0.9"]
    assert read_options(pytester.parseconfig(*args)) == Settings()
    assert with_marker(Settings(), {"mutate": True}, "test_a.py::test_a") == Settings()
    assert [str(warning.message).partition(" does ")[0] for warning in recwarn] == [
        "command line: --precision-mutate",
        "command line: --precision-min-kill",
        "test_a.py::test_a: mutate",
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("may_leave", "umask"),
        ("ranks_per_device", "2"),
        ("baseline_dir", "kept"),
        ("preload", "fractions"),
    ],
)
def test_an_ini_key_is_the_one_spelling(
    name: str,
    text: str,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    recwarn: pytest.WarningsRecorder,
) -> None:
    """The key works from pytest's own -o, without a warning; flag and variable warn."""
    key = OPTION[name].key
    value = setting(pytester, name, "-o", f"{key}={text}")
    assert not list(recwarn)
    assert setting(pytester, name, f"{OPTION[name].flag}={text}") == value
    monkeypatch.setenv(OPTION[name].variable, text)
    assert setting(pytester, name) == value
    assert [str(warning.message).partition("; ")[2] for warning in recwarn] == [
        f"write {OPTION[name].instead}"
    ] * 2


def test_help(pytester: pytest.Pytester) -> None:
    """`pytest --help` has every option with its default, and no flag that will go."""
    text = " ".join(pytester.runpytest_inprocess("--help").outlines)
    for option in OPTIONS:
        assert (f"{option.flag} " in text or f"{option.flag}=" in text) == (not option.instead)
        assert option.key in text
    assert "(default: 300)" in " ".join(text.split())
