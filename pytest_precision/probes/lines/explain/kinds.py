"""Name how an operation that made a wrong value differs from what the reference does."""

from __future__ import annotations

from pytest_precision.probes.lines.explain.calls import (
    ReferenceLookup,
    SingleCall,
    is_common,
    is_place,
    is_same,
    is_telling,
    last_maker,
    moves,
)
from pytest_precision.probes.lines.explain.counterparts import (
    SUMS,
    added_later,
    all_same,
    at_changed_line,
    is_at_line,
    is_changed_step,
    is_reordered,
    maker_of_number,
    most_alike,
    nearest_call,
    readers_between,
    reads,
    rivals,
    unlike_constants,
)
from pytest_precision.probes.lines.explain.detached import detached_by_one
from pytest_precision.probes.lines.explain.dropped import dropped_result
from pytest_precision.probes.lines.explain.following import Wrong
from pytest_precision.probes.lines.explain.from_before import of_other_step, older_in_reference
from pytest_precision.probes.lines.explain.kind_words import (
    A_REGION,
    AGAIN_IN_BACKWARD,
    IN_GRAPH,
    IN_REGION,
    MIXED,
    OF_A_PART,
    OTHER_BATCH,
    OTHER_DRAWS,
    OTHER_ORDER,
    SAME_CALL,
    ErrorKind,
    constant_words,
    operand_words,
)
from pytest_precision.probes.lines.explain.named_values import whose
from pytest_precision.probes.lines.explain.unwritten import unwritten
from pytest_precision.probes.lines.operations import GENERATOR, GRAPH

CASTS = frozenset({"_to_copy", "copy"})


def kind_of(wrong: Wrong, lookup: ReferenceLookup) -> ErrorKind:
    """Return how an operation that made a wrong value differs from what the reference does."""
    replayed = _replayed(wrong)
    if replayed is not None:
        name = wrong.call.operation.name
        at = wrong.call.at
        return ErrorKind("unknown", IN_GRAPH.format(name=name, at=at), blamed=replayed)
    if wrong.source:
        return _outside_input(wrong, lookup)
    if wrong.draws and not _draws_alike(wrong.call, lookup):
        words = OTHER_DRAWS if _draws_there(wrong.call, lookup) else AGAIN_IN_BACKWARD
        return ErrorKind("data", words, most_alike(wrong.call, lookup))
    if wrong.call.operation.is_region:
        return ErrorKind("unknown", IN_REGION, most_alike(wrong.call, lookup))
    for explain in (
        detached_by_one,
        dropped_result,
        _same_inputs,
        of_other_step,
        unwritten,
        _lacking,
        _other_inputs,
        _lacking_at_start,
    ):
        error_kind = explain(wrong, lookup)
        if error_kind is not None:
            return error_kind
    return _without_counterpart(wrong, lookup)


def _replayed(wrong: Wrong) -> SingleCall | None:
    """Return the CUDA graph, replayed before an operation, that may have made its wrong inputs."""
    before = (call for call in reversed(wrong.calls) if call.number < wrong.call.number)
    graph = next((call for call in before if call.operation.name == GRAPH), None)
    return graph if wrong.unlike else None


def _draws_alike(call: SingleCall, lookup: ReferenceLookup) -> bool:
    """Return whether the reference draws in this step from the same random state, as it does."""
    states = {value.digest for value in call.read if value.storage == GENERATOR}
    return any(
        rival.step == call.step and states.intersection(value.digest for value in rival.read)
        for rival in rivals(call, lookup)
    )


def _draws_there(call: SingleCall, lookup: ReferenceLookup) -> bool:
    """Return whether the reference draws in its backward, too, if this is a draw of a backward."""
    backward = call.operation.backward
    return not backward or any(other.draws and other.operation.backward for other in lookup.calls)


def _outside_input(wrong: Wrong, lookup: ReferenceLookup) -> ErrorKind:
    """Return the error kind `data` for a wrong input that no logged operation made."""
    value = next(value for value in wrong.unlike)
    counterpart = most_alike(wrong.call, lookup)
    tensor_words = f"a {value.dtype} tensor of shape {[*value.shape]}"
    words = f"it reads {tensor_words} that no operation has written"
    if wrong.call.operation.backward:
        words += ": it may be memory that was never filled"
    else:
        words += ", such as a batch, and that the reference does not have"
    return ErrorKind("data", words, counterpart)


def _same_inputs(wrong: Wrong, lookup: ReferenceLookup) -> ErrorKind | None:
    """Return the error kind of a call that the reference runs on the same inputs; else None."""
    call = wrong.call
    same = [other for other in rivals(call, lookup) if all_same(call.read, other.read)]
    if any(is_at_line(other, call) for other in lookup.calls):
        same = [other for other in same if other.line == call.line]
    if not same or not call.read:
        return None
    other = min(same, key=lambda like: len(unlike_constants(call, like)))
    return _with_constants(call, other) or _in_form(call, other)


def _with_constants(call: SingleCall, other: SingleCall) -> ErrorKind | None:
    """Return the error kind of a `call` whose constants differ from `other`'s; None if none do."""
    constants = unlike_constants(call, other)
    if not constants:
        return None
    dtypes = any("torch." in constant.text for pair in constants for constant in pair)
    ours, theirs = zip(*constants, strict=True)
    named = {
        side: {
            constant.name or f"constant {place + 1}": constant.text
            for place, constant in enumerate(side_constants)
        }
        for side, side_constants in (("candidate", ours), ("reference", theirs))
    }
    words = constant_words(call, other, theirs, ours)
    return ErrorKind("cast" if dtypes else "constant", words, other, named)


def _in_form(call: SingleCall, other: SingleCall) -> ErrorKind:
    """Return how a call with `other`'s inputs and constants still differs: by dtype or shape."""
    if call.operation.is_collective:
        return ErrorKind("collective", MIXED, other)
    dtypes = [side.results[0].dtype for side in (call, other) if side.results]
    if len({*dtypes}) == 2:
        words = f"the result is {dtypes[0]} here, {dtypes[1]} in the reference"
        return ErrorKind("cast", words, other)
    for mine, theirs in zip(call.read, other.read, strict=True):
        if mine.shape != theirs.shape and mine.digest == theirs.digest:
            words = f"a value has shape {[*mine.shape]} here, {[*theirs.shape]} in the reference"
            return ErrorKind("inputs", words, other)
        if mine.shape != theirs.shape:
            shapes = [*mine.shape], [*theirs.shape]
            if mine.elements < theirs.elements and _reduces(call):
                return ErrorKind("inputs", OF_A_PART.format(*shapes), other)
            return ErrorKind("unknown", OTHER_BATCH.format(*shapes), other)
    return ErrorKind("unknown", SAME_CALL, other)


def _reduces(call: SingleCall) -> bool:
    """Return whether an operation makes one number of all elements, as a norm does."""
    return bool(call.results) and all(value.elements == 1 for value in call.results)


def _lacking(wrong: Wrong, lookup: ReferenceLookup) -> ErrorKind | None:
    """Return the error kind if the reference first runs another operation on an input; or None."""
    for value in wrong.call.read:
        if value not in lookup or not is_telling(value):
            continue
        between = next(readers_between(value, wrong, lookup), None)
        if between is not None and is_reordered(between, wrong, lookup):
            return ErrorKind("order", OTHER_ORDER, between)
        if between is not None:
            return _missing(between, nearest_call(between, wrong, lookup), lookup)
    return None


def _missing(between: SingleCall, blamed: SingleCall | None, lookup: ReferenceLookup) -> ErrorKind:
    """Return the error kind where the reference's call `between` is left out, or has no effect."""
    if blamed is not None and is_changed_step(blamed, between, lookup):
        error_kind = _with_constants(blamed, between)
        if error_kind is not None:
            return error_kind._replace(blamed=blamed)
    words = f"the reference first runs {between.operation.name}{between.by}"
    return ErrorKind("missing", words, between, None, blamed)


def _other_inputs(wrong: Wrong, lookup: ReferenceLookup) -> ErrorKind | None:
    """Return the error kind of a call with some inputs unlike the reference's; None if unknown."""
    call = wrong.call
    if len(call.read) < 2 and not wrong.unlike:
        return None
    other = most_alike(call, lookup)
    if other is None or len(other.read) != len(call.read):
        return None
    pairs = zip(call.read, other.read, strict=True)
    unlike = [(mine, theirs) for mine, theirs in pairs if not is_same(mine, theirs)]
    if not unlike or len(unlike) == len(call.read):
        return None
    mine, theirs = unlike[0]
    between = [maker for maker in lookup.makers.get(theirs.digest, ()) if reads(maker, mine)]
    if between:
        return _missing(between[0], nearest_call(between[0], wrong, lookup), lookup)
    our_maker = last_maker(wrong.calls, call.number, lambda output: is_place(output, mine))
    if our_maker is not None and reads(our_maker, theirs) and mine.digest not in lookup.makers:
        return ErrorKind("extra", _only_here(other), other, None, our_maker)
    if call.base in SUMS and added_later(mine, other, lookup):
        return ErrorKind("order", OTHER_ORDER, other)
    in_user_code = call.line is not None and call.line.is_users
    blamed = None if in_user_code or is_telling(mine) else our_maker
    words = f"it reads {whose(mine, call, lookup)}, the reference {whose(theirs, call, lookup)}"
    return ErrorKind("inputs", words, other, None, blamed)


def _lacking_at_start(wrong: Wrong, lookup: ReferenceLookup) -> ErrorKind | None:
    """Return the error kind of a backward whose loss was not divided or scaled; else None.

    A loss that is divided in another function than it is computed in has its division there.
    """
    call = wrong.call
    if not call.operation.backward or len(call.read) != 1:
        return None
    start = maker_of_number(call, wrong.calls)
    if start is None:
        return None
    places = {(our_call.base, our_call.line) for our_call in wrong.calls}
    for other in lookup.calls:
        if (other.base, other.line, len(other.read)) == (call.base, call.line, 1):
            lacked = maker_of_number(other, lookup.calls)
            if lacked is None:
                continue
            place = lacked.base, lacked.line
            voided = place == (start.base, start.line) and unlike_constants(start, lacked)
            if voided or (start.base == "ones_like" and place not in places):
                return _missing(lacked, start, lookup)
    return None


def _other_operands(wrong: Wrong, lookup: ReferenceLookup) -> ErrorKind | None:
    """Return the error kind of a line that gives an operator another form of input; else None.

    The reference calls the operator in the same line and step with a tensor in place of a number,
    or with tensors of another shape or dtype.
    """
    call = wrong.call
    likes = [other for other in lookup.calls if is_at_line(other, call)]
    alone = sum(is_at_line(other, call) for other in wrong.calls) == len(likes) == 1
    if not alone or len(likes[0].arguments) != len(call.arguments):
        return None
    for mine, theirs in zip(call.arguments, likes[0].arguments, strict=True):
        ours, expected = operand_words(mine), operand_words(theirs)
        if ours != expected:
            words = f"it takes {ours} here, {expected} in the reference"
            return ErrorKind("inputs", words, likes[0])
    return None


def _without_counterpart(wrong: Wrong, lookup: ReferenceLookup) -> ErrorKind:
    """Return the error kind of an operation that the reference runs on none of its inputs."""
    call = wrong.call
    if call.operation.is_collective:
        return ErrorKind("collective", MIXED)
    if "fused" in call.base and all(other.base != call.base for other in lookup.calls):
        return ErrorKind("unknown", "the reference has no such operation")
    if moves(call):
        return ErrorKind("inputs", "it puts values where the reference has others")
    changes_dtype = any(mine.dtype != output.dtype for mine in call.read for output in call.results)
    kind = "cast" if call.base in CASTS and changes_dtype else "extra"
    read = [value for value in call.read if value in lookup and not is_common(value)]
    readers = lookup.readers[read[0].digest] if read else []
    reader = readers[0] if readers else None
    older = older_in_reference(wrong, lookup)
    operands = None if older else _other_operands(wrong, lookup)
    if operands is not None:
        return operands
    return ErrorKind(kind, older or _only_here(reader), reader or at_changed_line(call, lookup))


def _only_here(reader: SingleCall | None) -> str:
    """Return words for an operation that the reference lacks, and what reads its input there."""
    if reader is None:
        return "the reference runs no such operation on its input"
    name = A_REGION if reader.operation.is_region else reader.operation.name
    return f"the reference does not run it on its input, which {name}{reader.by} reads there"
