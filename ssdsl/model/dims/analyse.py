"""Discovers the dimensions of a captured model: follows the rules through the whole graph."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ssdsl.model.capture.call import CapturedCall, Tensor
from ssdsl.model.capture.capture import Capture
from ssdsl.model.dims.factors import Factors
from ssdsl.model.dims.signature import Letter, Misfit, Pattern, Signature, parse_signature, signature, whole_axes
from ssdsl.model.dims.window import Rolled
from ssdsl.model.graph import Origin
from ssdsl.model.ops.errors import MissingRule, RowDoesNotFit
from ssdsl.model.ops.families.whole import all_whole
from ssdsl.model.ops.op import Op, regroup
from ssdsl.model.ops.reader import TypedCall
from ssdsl.model.ops.registry import given, is_own, known
from ssdsl.record import replace
from ssdsl.text.diagnostic import Diagnostic, PlanError

TORCH = ("aten", "prims")  # the namespaces of torch's own operators


@dataclass(slots=True)
class BoundLetter:
    """A letter of a call's signature: its factors, and its properties in the signature."""

    letter: Letter
    factors: list[int]


@dataclass(slots=True)
class BoundCall:
    """A call with its letters bound: per operand and axis, the slots that it carries."""

    call: CapturedCall
    slots: dict[str, BoundLetter] = field(default_factory=dict)
    inputs: list[tuple[str, list[list[str]], bool]] = field(default_factory=list)
    outputs: list[tuple[str, list[list[str]], bool]] = field(default_factory=list)


@dataclass(slots=True)
class Analysis:
    """The factors of every axis of every value, and the calls with their letters bound to these; constants apart."""

    factors: Factors
    axes: dict[str, list[list[int]]]
    readings: list[BoundCall]
    constants: list[BoundCall]


def analyse(capture: Capture, constant: set[str]) -> Analysis:
    """Binds every axis of every value to factors. `constant` names the calls that need no rule.

    Raises PlanError for operators without a rule, and for rows of users that do not fit a call, all of them together.
    """
    found = Analysis(Factors(), {}, [], [])
    for name in capture.origins:
        found.axes[name] = [[found.factors.new(n)] for n in capture.tensors[name].shape]
    missing: dict[str, list[CapturedCall]] = {}
    alike = _alike(capture)
    wrong: dict[str, Diagnostic] = {}
    for call in capture.calls:
        op = known(call)
        needs_no_row = op is not None or call.target.namespace in TORCH  # a constant is computed whole
        if call.name in constant and needs_no_row:
            found.constants.append(_read(call, _apart(call, capture), capture, found))
        elif op is not None and op.dims is regroup:
            found.readings.append(_regroup(call, capture, found))
        else:
            read = _signature(op, call, capture, alike) if op is not None else None
            if isinstance(read, Signature):
                found.readings.append(_read(call, read, capture, found))
                continue
            if read is None:
                missing.setdefault(call.target.name(), []).append(call)
            else:
                wrong.setdefault(call.target.name(), read)
            _read(call, _apart(call, capture), capture, found)
    if missing or wrong:
        raise PlanError(*(_missing(calls, capture) for calls in missing.values()), *wrong.values())
    return found


def signature_of(call: CapturedCall, capture: Capture) -> Signature | None:
    """The signature that the row of a call gives; None if there is no row, or no rule in it that fits.

    Reshapes, which keep their factors, have no signature.
    """
    op = given(call)
    found = None if op is None or op.dims is regroup else _signature(op, call, capture, {})
    return found if isinstance(found, Signature) else None


Alike = Mapping[tuple[str, str], Sequence[CapturedCall]]  # the calls of an operator that read a tensor first


def _alike(capture: Capture) -> Alike:
    """The calls of the capture by their operator's name and the first tensor that they read."""
    found: dict[tuple[str, str], list[CapturedCall]] = {}
    for call in capture.calls:
        found.setdefault(_key(call), []).append(call)
    return found


def _key(call: CapturedCall) -> tuple[str, str]:
    return call.target.name(), next(iter(call.refs()), "")


def _signature(op: Op, call: CapturedCall, capture: Capture, alike: Alike) -> Signature | Diagnostic | None:
    """The signature of a call, or the diagnostic for a rule that does not fit; None if the row has no rule.

    If a rule of ssdsl's own does not fit, the operator is computed whole, which is always right. If a user's does not
    fit, the user gets an error.
    """
    typed = TypedCall(call, capture.tensors, capture.origins, alike.get(_key(call), ()))
    try:
        found = parse_signature(op.dims) if isinstance(op.dims, str) else op.dims(typed)
        if found is not None:
            _check_fit(found, typed, op)
        return found
    except Misfit as error:
        reason = str(error)
    except Exception as error:  # of a function that does not know this form of the call
        reason = f"its function `dims` raised {type(error).__name__}: {error}"
    if is_own(op):
        return all_whole(typed)
    return does_not_fit(typed, reason)


def _check_fit(found: Signature, call: TypedCall, op: Op) -> None:
    """Raises Misfit unless every tensor of a call has a pattern with as many axes."""
    required = sum(not p.optional for p in found.inputs)
    given, made = len(call.inputs), len(call.outputs)
    if not required <= given <= len(found.inputs) or len(found.outputs) != made:
        raise Misfit(f"it has {len(found.inputs)} inputs and {len(found.outputs)} outputs, the call {given} and {made}")
    patterns = found.inputs[:given]  # those that are absent come last
    for pattern, tensor in zip((*patterns, *found.outputs), (*call.inputs, *call.outputs), strict=True):
        pattern.fit(len(tensor.shape))
    if op.kernel is None and any(x.combined for x in found.letters().values()):
        raise Misfit("a dimension marked `*` needs a `kernel` that combines its parts")


def does_not_fit(call: TypedCall, reason: str) -> RowDoesNotFit:
    """The diagnostic for a user's row that does not fit a call."""
    given, made = (", ".join(str(list(t.shape)) for t in tensors) for tensors in (call.inputs, call.outputs))
    return RowDoesNotFit.of(call.call, reason=reason, shapes=f"{given} -> {made}")


def _apart(call: CapturedCall, capture: Capture) -> Signature:
    """The signature of a call that is computed whole, of no inputs: each axis of its results has its own letter."""
    made = [capture.tensors[o] for o in call.outputs if o in capture.tensors]
    return signature([], [whole_axes(len(t.shape), f"{n}.") for n, t in enumerate(made)])


def _read(call: CapturedCall, signature: Signature, capture: Capture, found: Analysis) -> BoundCall:
    """Binds the letters of a signature to the axes of the call's tensors and unites what shares a letter."""
    reading = BoundCall(call)
    given = list(call.refs())
    for pattern in signature.inputs:
        if not given and pattern.optional:
            continue
        value = given.pop(0)
        _input(reading, pattern, value, found)
    outputs = [o for o in call.outputs if o in capture.tensors]
    for pattern, output in zip(signature.outputs, outputs, strict=True):
        axes = _output(reading, pattern, capture.tensors[output], found)
        found.axes[output] = [[f for s in axis for f in reading.slots[s].factors] for axis in axes]
        reading.outputs.append((output, axes, False))
    return reading


def _input(reading: BoundCall, pattern: Pattern, value: str, found: Analysis) -> None:
    axes = found.axes[value]
    named: list[list[str]] = []
    for factors, letters in zip(axes, pattern.fit(len(axes)), strict=True):
        size = math.prod(found.factors.size(f) for f in factors)
        broadcasts = size == 1 and len(letters) == 1 and letters[0].name.startswith(".")
        named.append([] if broadcasts else _axis(reading, letters, factors, found))
    reading.inputs.append((value, named, pattern.once))


def _axis(reading: BoundCall, axis: tuple[Letter, ...], factors: list[int], found: Analysis) -> list[str]:
    """Binds the letters of one axis. An axis that its letters cannot refine becomes one letter that cannot be split;
    nor can these letters then, in any operand."""
    if len(axis) > 1:
        size = math.prod(found.factors.size(f) for f in factors)
        known = math.prod(letter.size or 1 for letter in axis)
        pieces = [found.factors.new(letter.size or size // known) for letter in axis]
        if found.factors.unite(factors, pieces):
            return [_one(reading, letter, [piece], found) for letter, piece in zip(axis, pieces, strict=True)]
        for letter, piece in zip(axis, pieces, strict=True):
            _one(reading, replace(letter, fixed=True), [piece], found)
        return [_one(reading, Letter(f"{axis[0].name}?{len(reading.slots)}", fixed=True), factors, found)]
    return [_one(reading, axis[0], factors, found)] if axis else []


def _one(reading: BoundCall, letter: Letter, factors: list[int], found: Analysis) -> str:
    """Binds one letter; where it is bound already and both have no common refinement, neither can be split."""
    slot = reading.slots.get(letter.name)
    if slot is None:
        reading.slots[letter.name] = BoundLetter(letter, factors)
        return letter.name
    if letter.fixed and not slot.letter.fixed:
        slot.letter = letter
    if found.factors.unite(slot.factors, factors):
        return letter.name
    slot.letter = Letter(letter.name, fixed=True)
    name = f"{letter.name}?{len(reading.slots)}"
    reading.slots[name] = BoundLetter(Letter(name, fixed=True), factors)
    return name


def _output(reading: BoundCall, pattern: Pattern, tensor: Tensor, found: Analysis) -> list[list[str]]:
    named: list[list[str]] = []
    for size, axis_letters in zip(tensor.shape, pattern.fit(len(tensor.shape)), strict=True):
        for letter in axis_letters:
            if letter.name not in reading.slots:
                rolled = _rolled(reading, letter)
                factors = [found.factors.new(letter.size or size)] if rolled is None else rolled
                reading.slots[letter.name] = BoundLetter(letter, factors)
        named.append([letter.name for letter in axis_letters])
    return named


def _rolled(reading: BoundCall, letter: Letter) -> list[int] | None:
    """The factors of the axis that a letter of a result is, rolled: its positions are the same in another order, so it
    is the same dimension, of as many factors. None for other letters."""
    windows = ((slot, slot.letter.window) for slot in reading.slots.values())
    found = (s.factors for s, w in windows if w is not None and w.of == letter.name and isinstance(w.shape, Rolled))
    return next(found, None)


def _regroup(call: CapturedCall, capture: Capture, found: Analysis) -> BoundCall:
    """A reshape keeps the sequence of factors; a run of axes with no common refinement becomes new, whole ones."""
    given, output = call.args[0].value, call.outputs[0]
    before = found.axes[given]
    after = [[found.factors.new(n)] for n in capture.tensors[output].shape]
    found.axes[output] = after
    reading = BoundCall(call)
    flat_before, flat_after = [f for axis in before for f in axis], [f for axis in after for f in axis]
    barred: list[tuple[list[int], list[int]]] = []
    for left, right in found.factors.segments(flat_before, flat_after):
        if not found.factors.unite(left, right):
            barred.append((left, right))
    fixed = {f for pair in barred for side in pair for f in side}
    reading.inputs.append((given, [_kept(reading, axis, fixed, "before", found) for axis in before], False))
    reading.outputs.append((output, [_kept(reading, axis, fixed, "after", found) for axis in after], False))
    return reading


def _kept(reading: BoundCall, axis: Sequence[int], fixed: set[int], side: str, found: Analysis) -> list[str]:
    """Slots of one axis of a reshape: all of one letter, so that both sides meet, or one a side where they cannot."""
    names = []
    for factor in axis:
        whole = bool(fixed & set(found.factors.leaves([factor])))
        name = f"{side}{factor}"
        reading.slots[name] = BoundLetter(Letter(side if whole else "", fixed=whole), [factor])
        names.append(name)
    return names


def _missing(calls: list[CapturedCall], capture: Capture) -> Diagnostic:
    call = calls[0]
    times = "once" if len(calls) == 1 else f"{len(calls)} times, first"
    return MissingRule.of(call, times=times, row=_row(call, capture))


def _row(call: CapturedCall, capture: Capture) -> str:
    """A row to start from: axes of equal size share a letter, all whole."""
    names: dict[int, str] = {}

    def axes(value: str) -> str:
        shape = capture.tensors[value].shape
        return " ".join(names.setdefault(n, f"{chr(97 + len(names) % 26)}!") for n in shape) or "_"

    left = ", ".join(axes(r) for r in call.refs() if r in capture.tensors)
    right = ", ".join(axes(o) for o in call.outputs if o in capture.tensors)
    module = "" if call.target.namespace in TORCH else f', module="{call.target.namespace}"'
    return f'OPS = [ssdsl.Op("{call.target.name()}", "{left} -> {right}"{module})]'


def stages(capture: Capture) -> tuple[set[str], set[str]]:
    """The calls that depend on no input and no weight, and those that depend on inputs only.

    A call that repeats a constant (a mask, for every sample) is neither: each part repeats it for itself. The whole
    result would be as large as the batch, and stay in memory for all of the step.
    """
    known = {Origin.CONSTANT: 0, Origin.INPUT: 1, Origin.SEED: 1}
    level = {name: known.get(origin, 2) for name, origin in capture.origins.items()}
    constants: set[str] = set()
    data: set[str] = set()
    for call in capture.calls:
        mine = max((level[r] for r in call.refs()), default=0)
        if mine == 0 and call.target is torch.ops.aten.expand.default:
            mine = 2
        level.update(dict.fromkeys(call.outputs, mine))
        if mine < 2:
            (constants, data)[mine].add(call.name)
    return constants, data
