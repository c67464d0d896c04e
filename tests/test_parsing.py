"""Names of tensors are taken apart in one module, and no message decides anything."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytest_precision

PACKAGE = Path(pytest_precision.__file__).parent

HOME = "matrix/tensor_key.py"
"""Where names of tensors are put together and taken apart."""

ROOMS = (
    "check",
    "engine",
    "layouts",
    "modules",
    "parity",
    "probes",
    "recipes",
    "recorders",
    "trace",
)
"""Folders that see names of tensors."""

PARSERS = frozenset(
    {"endswith", "findall", "finditer", "fullmatch", "match", "partition", "removeprefix"}
    | {"removesuffix", "rpartition", "rsplit", "search", "split", "startswith"}
)
"""Methods that take a text apart, or ask how it begins or ends."""

NO_NAMES = {
    "trace/remote_folder.py": "addresses, and the order in which files are sent",
    "engine/attributes.py": "names and modules of Python's classes and attributes",
    "engine/further.py": "names of Python's attributes",
    "engine/modes.py": "modules of Python's classes",
    "engine/values.py": "modules of Python's classes",
    "layouts/megatron/shards.py": "which parameters a layout stores for which logical one",
    "layouts/transformer_engine/layers.py": "names of parameters and modules of a model",
    "layouts/transformer_engine/shown.py": "names of parameters of a model",
    "recorders/scripts/loop_names.py": "places in a model that have no name yet",
    "recorders/scripts/step_buffer.py": "the first line of an exception",
    "probes/lines/log/frames.py": "names of files and of functions",
    "probes/lines/log/user_calls.py": "names of functions",
    "probes/lines/log/operation_log.py": "names of torch's operators",
    "probes/lines/operations.py": "names of torch's operators, digests, and owners of options",
    "modules/replace.py": "names of modules of a model",
    "parity/compare/criteria.py": "keys that a test writes",
    "probes/lines/explain/source_lines.py": "names of files, and lines of source code",
    "probes/lines/explain/worded.py": "names of files",
    "probes/declared_rule/oracle_findings.py": "names of an optimizer's options",
    "parity/verdict.py": "node ids of pytest",
    "recipes/megatron/cuda_calls.py": "names of devices",
    "recipes/megatron/memory.py": "names of modules of a model",
    "recipes/__init__.py": "numbers of releases",
    "recorders/rank_probes.py": "import paths of functions",
    "recorders/run_modes.py": "the name of a package",
    "recorders/run_environment.py": "names of variables",
    "probes/declared_rule/oracle/estimate.py": "names of an optimizer's options",
    "recorders/scripts/script_file.py": "paths of source files",
    "probes/races/perturb/delays.py": "names of torch's functions",
    "probes/races/perturb/rounding_noise.py": "names of torch's functions",
    "recipes/megatron/flat_shards.py": "names of parameters, with numbers of experts",
    "trace/file_parts.py": "names of files",
    "trace/manifest.py": "the lines of an exception",
    "probes/baselines/baseline_files.py": "node ids of pytest, and the first lines of a file",
    "probes/by_itself/findings.py": "names of a scheduler's counters",
    "probes/by_itself/judges.py": "the name of a package",
    "probes/by_itself/update_rules.py": "names of optimizers' classes",
    "probes/lines/explain/made_anew.py": "names of functions",
    "probes/lines/explain/last_set.py": "digests that spell a number",
    "recorders/watching/teams.py": "owners, as this package words them",
    "probes/by_itself/thrown_away.py": "names of files",
    "probes/baselines/baseline_summary.py": "node ids of pytest",
    "probes/lines/explain/batching.py": "names of functions",
    "probes/lines/log/settings.py": "names of options",
    "probes/baselines/baseline_lines.py": "lines of a baseline",
    "probes/baselines/baseline_text.py": "lines of a baseline",
    "probes/baselines/baseline_trace.py": "the first character of a kept value",
    "probes/proposals/proposal_lines.py": "keys of a criterion",
    "probes/proposals/proposal.py": "keys of a criterion",
}
"""Modules that take other texts apart, with what these are."""

PROSE = frozenset({"brief", "criterion", "details", "headline", "message", "reason"})
"""Names of what is written for readers."""


def parsed(source: str) -> Iterator[ast.Call]:
    """Yield the calls that take a text apart; torch's own `split` is of tensors."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of_tensors = node.func.attr == "split" and (
                ast.unparse(node.func.value) in ("torch", "self.names", "rows", "heads")
            )
            if node.func.attr in PARSERS and not of_tensors:
                yield node


def matched(source: str) -> Iterator[str]:
    """Yield the comparisons and tests that look at prose for anything but whether there is some."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            empty = any(isinstance(s, ast.Constant) and s.value in (None, "") for s in sides)
            made = any(isinstance(s, ast.Call) and not _named(s) for s in sides)  # no text
            if not (empty or made) and any(_named(side) in PROSE for side in sides):
                yield ast.unparse(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            asks = node.func.attr in PARSERS - {"removeprefix", "removesuffix"}
            if asks and _named(node.func.value) in PROSE:
                yield ast.unparse(node)


def _named(node: ast.expr) -> str:
    """Return the last name in an expression: of `verdict["reason"]`, `reason`."""
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(name)), *_]):
            return name
    return ""


def sources(folder: Path) -> list[tuple[str, str]]:
    files = sorted(folder.rglob("*.py"))
    return [(str(file.relative_to(folder)), file.read_text()) for file in files]


def test_names_of_tensors_are_taken_apart_in_one_module() -> None:
    """A name that is written otherwise would disarm, without a word, each check that parses it."""
    seen = [(file, text) for file, text in sources(PACKAGE) if file.split("/")[0] in ROOMS]
    assert len(seen) > 100
    found = {file for file, text in seen if any(parsed(text))}
    assert sorted(found - NO_NAMES.keys()) == []
    assert sorted(NO_NAMES.keys() - found) == [], "these take nothing apart any longer"


def test_nothing_is_decided_by_words() -> None:
    """Verdicts, gates and statuses are data; their words are for readers, and may be improved."""
    fixtures = PACKAGE.parent / "fixtures"
    seen = sources(PACKAGE) + sources(fixtures)
    assert len(seen) > 400
    found = {(file, words) for file, text in seen for words in matched(text)}
    assert found == set()


@pytest.mark.parametrize(
    "planted",
    [
        'owner = entry.name.rpartition(".")[0]',
        'wanted = entry.name.startswith("weight_decay of ")',
        "found = OPERAND.fullmatch(name)",
    ],
)
def test_a_parsed_name_is_found(planted: str) -> None:
    """The test above fails on what it is there for."""
    assert [*parsed(planted)]


@pytest.mark.parametrize(
    "planted",
    [
        '"is not what the workload\'s" in verdict.reason',
        'verdict["criterion"] != "bitwise"',
        'verdict["reason"] in text',
        'self.reason.startswith("race: ")',
        'entry.get("reason") == "vacuous"',
    ],
)
def test_a_decision_by_words_is_found(planted: str) -> None:
    """The test above fails on what it is there for."""
    assert [*matched(planted)]
    assert not [*matched("verdict.reason or other.text is None")]
