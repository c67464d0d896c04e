"""The commit or interpreter of `--precision-against` and `--precision-against-python`.

The process that reports makes the work tree, before anything runs; xdist's workers use it.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_precision._folders import OwnFolder
from pytest_precision.errors import RevisionError, expected_but_got
from pytest_precision.options import Settings
from pytest_precision.ranks.launch.launch import Launch
from pytest_precision.ranks.pool import RankPool
from pytest_precision.registered import ProbeSpec
from pytest_precision.revisions.installation import Installation, called, link_package
from pytest_precision.revisions.other_ranks import OtherRanks
from pytest_precision.revisions.work_tree import commit_of, repository_of, work_tree

if TYPE_CHECKING:
    from pytest_precision.check.checked_test import CheckedTest
    from pytest_precision.check.ruled_check import FurtherRule
    from pytest_precision.check.terms import Terms
    from pytest_precision.probes.then.recorded_then import Then

WORD = "precision_other_side"
"""Under which xdist's workers are told of the other side."""

LAST_LINES = 5
"""Lines of a build that failed which its message has."""


@dataclass(frozen=True)
class OtherSide:
    """The commit or interpreter that the present code's results are compared with.

    Attributes:
        installation: whose code runs.
        package: folder with this package and nothing else.
    """

    installation: Installation
    package: Path


OTHER_SIDE = pytest.StashKey[OtherSide]()


class ThenRanks:
    """The judgement that compares each check with the other side, and the ranks that run its code.

    Args:
        other_side: the commit or interpreter.
    """

    def __init__(self, other_side: OtherSide) -> None:
        self._other_side = other_side
        self._other_ranks: OtherRanks | None = None
        self._then: dict[RankPool, Then] = {}

    def pytest_precision_probes(self) -> ProbeSpec:
        """Return the judgement."""
        return ProbeSpec(name="then", further=self._rule, in_bare=True)

    def _rule(self, test: CheckedTest, terms: Terms, golden: str) -> FurtherRule:
        # Only here, so that a session that compares nothing does not import torch.
        from pytest_precision.probes.then.recorded_then import Then, then_rule

        ours, settings, other_side = test.ranks, test.settings, self._other_side
        if self._other_ranks is None:
            self._other_ranks = OtherRanks(other_side.installation, other_side.package)
        if ours not in self._then:
            pool = RankPool(
                settings.ranks,
                settings.timeout,
                ours.device,
                self._other_ranks.start,
                settings.ranks_per_device,
            )
            differences = self._other_ranks.differences
            self._then[ours] = Then(other_side.installation.name, pool, differences)
        return then_rule(self._then[ours], test)

    def close(self) -> None:
        """End the ranks; further calls do nothing."""
        while self._then:
            self._then.popitem()[1].ranks.close()
        if self._other_ranks is not None:
            self._other_ranks.close()
            self._other_ranks = None


def open_other_side(config: pytest.Config, settings: Settings) -> None:
    """Check out the commit, or find the interpreter, that options compare the tests with.

    Raises:
        pytest.UsageError: there can be none; the message says why.
    """
    pickled_side = getattr(config, "workerinput", {}).get(WORD)
    if pickled_side is not None:
        _compare_with(pickle.loads(pickled_side), config)
        return
    _expect_possible(settings)
    _expect_own_root(config)
    if not (settings.enabled and settings.compares_in_time):
        return
    stack = ExitStack()
    config.add_cleanup(stack.close)
    try:
        other_side = _checked_out_side(config.rootpath, settings, stack)
    except RevisionError as error:
        raise pytest.UsageError(str(error)) from error
    _compare_with(other_side, config)


def _compare_with(other_side: OtherSide, config: pytest.Config) -> None:
    config.stash[OTHER_SIDE] = other_side
    then_ranks = ThenRanks(other_side)
    config.pluginmanager.register(then_ranks, "precision-then")
    config.add_cleanup(then_ranks.close)


def tell_worker(node: Any) -> None:
    """Send an xdist worker the commit and interpreter that checks are compared with."""
    if OTHER_SIDE in node.config.stash:
        node.workerinput[WORD] = pickle.dumps(node.config.stash[OTHER_SIDE])


def _expect_possible(settings: Settings) -> None:
    if not settings.compares_in_time:
        return
    if settings.baseline is not None:
        raise pytest.UsageError(
            expected_but_got(
                "one of --precision-baseline and --precision-against[-python]",
                f"both, with --precision-baseline={settings.baseline}",
                "run pytest once with each",
            )
        )
    flag = "--precision-against" if settings.against else "--precision-against-python"
    if settings.ranks == "inline":
        raise pytest.UsageError(
            expected_but_got(
                f"ranks in separate processes with {flag}",
                "--precision-ranks=inline",
                "leave that option out",
            )
        )
    launch = Launch.of(os.environ)
    if launch is not None:
        raise pytest.UsageError(
            expected_but_got(
                f"no launcher with {flag}, which starts the ranks of both sides,",
                f"{launch.launcher} with world_size={launch.world_size}",
                f"run `pytest` without {launch.launcher}, or compare a script: "
                "torchrun … -m pytest_precision diff REVISION -- train.py",
            )
        )


def _expect_own_root(config: pytest.Config) -> None:
    """Raise if pytest took the path after --precision-against-python for a test path."""
    option = "--precision-against-python"
    called_from = config.invocation_params.dir
    is_elsewhere = config.inipath is None or not called_from.is_relative_to(config.rootpath)
    if option in config.invocation_params.args and is_elsewhere:
        raise pytest.UsageError(
            expected_but_got(
                "pytest to find the ini file of your project",
                f"rootdir {config.rootpath}",
                f"write {option}=PATH with `=`: after a space, pytest takes PATH for a test path",
            )
        )


def _checked_out_side(rootpath: Path, settings: Settings, stack: ExitStack) -> OtherSide:
    python = settings.against_python
    if python is not None:
        Installation(str(python), python).expect_able("--precision-against-python")
    folder = stack.enter_context(OwnFolder("against-"))
    package = link_package(folder / "plugin")
    if not settings.against:
        assert python is not None
        return OtherSide(Installation(str(python), python), package)
    root = repository_of(rootpath)
    commit = commit_of(root, settings.against)
    tree = stack.enter_context(work_tree(root, commit, folder / "trees" / commit))
    name = called(settings.against, commit, python)
    installation = Installation(name, python or Path(sys.executable), (root, tree))
    if settings.against_build:
        _build(settings.against_build, installation, tree)
    return OtherSide(installation, package)


def _build(command: str, installation: Installation, tree: Path) -> None:
    """Run the user's build command in a work tree.

    Raises:
        RevisionError: it failed; the message has its last lines.
    """
    path = os.pathsep.join([str(installation.python.parent), os.environ.get("PATH", os.defpath)])
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=tree,
        env=os.environ | {"PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    if done.returncode:
        said = " / ".join(done.stdout.strip().splitlines()[-LAST_LINES:])
        raise RevisionError(
            expected_but_got(
                f"precision_against_build={command!r} to build {installation.name}",
                f"status {done.returncode}: {said}",
                "try it in a checkout of that commit",
            )
        )
