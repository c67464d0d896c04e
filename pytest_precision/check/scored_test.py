"""The part of the fixture `parity` that compares log-probabilities, and rows of one function.

What compares is imported where it is called: a session that compares nothing needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pkgutil import resolve_name
from typing import Any

from pytest_precision.check.checked_test import CheckedTest
from pytest_precision.check.preconditions import distinct
from pytest_precision.check.terms import Terms
from pytest_precision.errors import expected_but_got, is_bad_input, named
from pytest_precision.matrix.cell import axes_of
from pytest_precision.parity.compare.criterion import Criterion
from pytest_precision.parity.verdict import Ruling, Verdict
from pytest_precision.recorders.scripts.script import is_script

__tracebackhide__ = is_bad_input


class ScoredTest(CheckedTest):
    """Checks of a test in which two sides score tokens, or one function computes rows."""

    def score(
        self,
        candidate: Any,
        reference: Any,
        *,
        sequences: Any = None,
        ways: Sequence[str] = (),
        criterion: Criterion | Mapping[str, Criterion] | None = None,
        cast: Any = None,
        names: Any = None,
        history: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> Verdict:
        """Ask whether two sides hold the same weights, and score each token alike.

        Both run in this process, or, as a `script` or a `command`, on ranks of their own. The page
        "Trainer and rollout" has all of this with examples.

        Args:
            candidate: the engine: a model, a function of the sequences that returns the
                log-probabilities of each, or a `pytest_precision.rollout.Scorer`, which has both;
                or a `script` or `command` that calls `pytest_precision.rollout.show_scores`.
            reference: the trainer.
            sequences: ids of each sequence, as lists or tensors; scripts have their own.
            ways: in which the candidate's model is called, such as `["left", "decode"]`; unless
                given, the cell's own axis `way`, or the candidate's.
            criterion: see `check`; of the kinds `logprob` and `weight`. `noise()` measures honest
                ways of the reference's model.
            cast: what the engine does to a weight: a dtype or a format by its name, a function
                `(name, tensor)`, or one of these for each pattern of names.
            names: how the engine's tensors are made of the trainer's: a recipe's name, a dict, or
                a function of the engine's name.
            history: step to the weights that the trainer held then, see `rollout.weight_snapshot`.

        Returns:
            The verdict, if it is `pass`.

        Raises:
            ParityError: with any other verdict.
            TypeError: a side is no model, function or Scorer, the sequences are no ids, or a script
                is compared with what is none, or is given what it says to `show_scores` itself.
            ValueError: there is no such way, cast or recipe, or the model lacks what a way needs.
        """
        __tracebackhide__ = True
        if is_script(candidate) or is_script(reference):
            said = {"sequences": sequences, "ways": ways or None, "cast": cast}
            self._expect_scripts(candidate, reference, said | {"names": names, "history": history})
            return self._scripts_scored(candidate, reference, self._terms(Terms.of(criterion)))
        score = resolve_name("pytest_precision.rollout.score_check:score_check")
        declared = resolve_name("pytest_precision.rollout.expected_weights:SyncTerms")
        terms = Terms.of(criterion)
        if not ways and "way" in dict(self.cell.extra):
            ways = [self.cell.way]
        way_in = declared(cast, names, history or {})
        ruled = score(candidate, reference, sequences, ways, terms.criteria, way_in)
        return self._verdict_of(candidate, reference, str(terms.criteria), *ruled)

    @staticmethod
    def _expect_scripts(candidate: Any, reference: Any, said: Mapping[str, Any]) -> None:
        """Raise unless both sides are scripts, and say themselves what they are to say.

        Raises:
            TypeError: one is none, or an argument is given that `show_scores` takes.
        """
        for name, side in (("candidate", candidate), ("reference", reference)):
            if not is_script(side):
                advice = "declare both with @script, or neither"
                expected = f"{name} to be a script"
                raise TypeError(expected_but_got(expected, named(name, side), advice))
        for name, argument in said.items():
            if argument is not None:
                advice = "give it to show_scores in the script"
                expected = f"no {name} beside scripts"
                raise TypeError(expected_but_got(expected, repr(argument), advice))

    def _scripts_scored(self, candidate: Any, reference: Any, terms: Terms) -> Verdict:
        """Have two scripts score on ranks, and return the verdict."""
        __tracebackhide__ = True
        scored = resolve_name("pytest_precision.rollout.script_scores:scripts_scored")
        sides = self._pair(candidate, reference, None, (self.cell, self.cell), terms)
        rule = partial(scored, sides, self.ranks, self.settings.timeout, terms.criteria)
        same = sides[0].computes_as(sides[1])
        ruled = self._ruled(distinct(same, "script"), rule)
        return self._verdict(sides[0], str(sides[1].layout), str(terms.criteria), ruled)

    def invariant(
        self, function: Callable[..., Any], *, inputs: Any, over: str = "batch"
    ) -> Verdict:
        """Ask whether each row of a result has the same bytes, whatever batch it is computed in.

        Args:
            function: a kernel, a module or any other callable; its first results have a row for
                each row of the inputs. Bind what has no rows with `functools.partial`.
            inputs: a tensor, or several, with the rows in dimension 0.
            over: `batch`, the only one.

        Returns:
            The verdict, if it is `pass`.

        Raises:
            ParityError: with any other verdict.
            TypeError, ValueError: the inputs are no tensors with rows, or `over` is another word.
        """
        __tracebackhide__ = True
        rule = resolve_name("pytest_precision.rollout.batch_invariance:batch_invariant")
        ruled = rule(function, inputs, over)
        return self._verdict_of(function, "each row in a batch of its own", "bitwise", *ruled)

    def _verdict_of(
        self,
        candidate: object,
        reference: object,
        criterion: str,
        ruling: Ruling,
        figures: dict[str, Any],
    ) -> Verdict:
        """Return the stored verdict of a check that ran in this process; raise if not passed."""
        __tracebackhide__ = True
        return self._stored_verdict(
            Verdict(
                nodeid=self.nodeid,
                axes=axes_of(self.cell),
                candidate=_name_of(candidate),
                reference=_name_of(reference),
                workload="",
                criterion=criterion,
                ruling=ruling,
                figures=figures,
            )
        )


def _name_of(side: object) -> str:
    """Return a name of a side for a report: that of a function, of a class, or a text itself."""
    if isinstance(side, str):
        return side
    name = getattr(side, "__qualname__", "")
    return str(name or type(side).__qualname__)
