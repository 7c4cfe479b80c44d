"""Runs the experiments with one call: draws inputs, finds letters and linear parameters, and writes the signature.

A large call is tried in small shapes: in sizes that can shrink so that the operator still accepts them.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from math import prod

import torch

from ssdsl.discover.draws import WIDER, Draw, Shape, draws, flows
from ssdsl.discover.letters import LetterCandidate, letters, linear_in
from ssdsl.discover.trial import Fails, TooLong, Trial, Unsteady, apart
from ssdsl.model.capture.call import CapturedCall, Tensor
from ssdsl.record import Record

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
OWN = 1 << 15  # elements; a call whose tensors have not more is tried in its own shapes
LARGEST = 1 << 17  # elements of all tensors of a call in smaller shapes
SMALL = 8  # sizes up to this stay
SCALES = (5, 11)  # the smallest size in each of the two scales


class FoundRule(Record):
    """A rule that held in all experiments with one call, and nothing beyond what they showed.

    `signature` is written as in a row; `linear_in` has sets of parameters, as in a row. `flows` says for each result
    whether a gradient flows through it. `contraction`: it sums products of two inputs. `why_whole` says why nothing can
    be split, if nothing can.
    """

    signature: str
    linear_in: tuple[str, ...] = ()
    flows: tuple[bool, ...] = ()
    contraction: bool = False
    why_whole: str = ""


class TrialShapes(Record):
    """The shapes of the inputs and of the results."""

    shapes: tuple[Shape, ...]
    made: tuple[Shape, ...]

    @property
    def elements(self) -> int:
        return sum(prod(s) for s in (*self.shapes, *self.made))


def experiment(
    call: CapturedCall, given: Sequence[Tensor], made: Sequence[Tensor], careful: bool, limit_s: float
) -> FoundRule:
    """The rule of a call. `given` and `made` are the tensors that it reads and makes; `careful`: integers stay as small
    as possible."""
    own = TrialShapes(tuple(t.shape for t in given), tuple(t.shape for t in made))
    if not given:
        return whole(own.shapes, own.made, "it has no inputs")
    if call.target._schema.is_mutable:
        return whole(own.shapes, own.made, "it changes its inputs")
    dtypes = [getattr(torch, t.dtype) for t in given]
    wide = [getattr(torch, WIDER.get(t.dtype, t.dtype)) for t in given]
    reason = ""
    trial = Trial(call, careful, limit_s)
    with apart():
        for types in (wide, dtypes):
            try:
                return _found(trial, own, types)
            except Unsteady as error:
                return whole(own.shapes, own.made, str(error))
            except Fails as error:
                reason = str(error)
            except TooLong:
                return whole(own.shapes, own.made, "the experiments took too long")
    return whole(own.shapes, own.made, reason)


def _found(trial: Trial, own: TrialShapes, dtypes: Sequence[torch.dtype]) -> FoundRule:
    drawn = [_first_drawn(trial, tried, dtypes) for tried in settings(trial, own, dtypes)]
    chosen = letters(trial, own.shapes, own.made, drawn)
    sets = [linear_in(trial, d) for d in drawn]
    product = any(c.is_summed and sum(a is not None for a in c.inputs) > 1 for c in chosen)
    return FoundRule(
        signature_text(own, chosen),
        tuple(s for s in sets[0] if all(s in more for more in sets)),
        flows(trial, drawn[0][0]),
        product,
        why_whole="" if chosen else "no axis of it can be cut",
    )


def _first_drawn(trial: Trial, tried: Sequence[TrialShapes], dtypes: Sequence[torch.dtype]) -> list[Draw]:
    """Draws in the first of these settings on which the call runs. Raises Fails if it runs on none."""
    reason = "it is too large to try"
    for setting in tried:
        try:
            found = draws(trial, setting.shapes, dtypes, setting.made)
        except Fails as error:
            reason = str(error)
            continue
        if tuple(tuple(y.shape) for y in found[0].whole.outputs) == setting.made:
            return found
        reason = "its results have other shapes on small inputs"
    raise Fails(reason)


def whole(shapes: Sequence[Shape], made: Sequence[Shape], reason: str) -> FoundRule:
    """The rule of a call that cannot be split, with the reason."""
    text = signature_text(TrialShapes(tuple(shapes), tuple(made)), ())
    return FoundRule(text, flows=(True,) * len(made), why_whole=reason)


def signature_text(own: TrialShapes, chosen: Sequence[LetterCandidate]) -> str:
    """The signature as in a row: the letters that were found, and whole ones for all other axes.

    A whole axis of a result has the letter of the input's whole axis in its position, if both are of one size: so it
    gets the same name, and later operators may be split along it.
    """
    names, known = _names(), dict[LetterCandidate, str]()
    given = [_marked(s, [(c.inputs[i], c) for c in chosen]) for i, s in enumerate(own.shapes)]
    made = [_marked(s, [(c.outputs[i], c) for c in chosen]) for i, s in enumerate(own.made)]

    def axis(size: int, letter: LetterCandidate | None, kept: str = "") -> str:
        if size == 1:
            return "1"
        if letter is None:
            return kept or f"{next(names)}!"
        if letter not in known:
            known[letter] = next(names)
        return known[letter]

    left = [[axis(n, c) for n, c in zip(s, row, strict=True)] for s, row in zip(own.shapes, given, strict=True)]
    right = []
    for shape, row in zip(own.made, made, strict=True):
        kept = [""] * len(shape)
        if (like := _like(shape, own.shapes)) is not None:
            pairs = zip(left[like], own.shapes[like], shape, given[like], strict=True)
            kept = [word if n == m and c is None else "" for word, n, m, c in pairs]
        right.append([axis(n, c, word) for n, c, word in zip(shape, row, kept, strict=True)])
    return f"{_operands(left)} -> {_operands(right)}"


def _marked(shape: Shape, placed: Sequence[tuple[int | None, LetterCandidate]]) -> list[LetterCandidate | None]:
    """The letter of each axis, None for one without."""
    return [next((c for a, c in placed if a == at), None) for at in range(len(shape))]


def _like(shape: Shape, shapes: Sequence[Shape]) -> int | None:
    """The number of the input that has most axes in common with a result; None if none has any."""
    alike = {i: sum(map(int.__eq__, s, shape)) for i, s in enumerate(shapes) if len(s) == len(shape)}
    best = max(alike, key=lambda i: alike[i], default=None)
    return best if best is not None and alike[best] else None


def _operands(rows: Sequence[Sequence[str]]) -> str:
    return ", ".join(" ".join(axes) or "_" for axes in rows)


def _names() -> Iterator[str]:
    for number in itertools.count():
        yield from (f"{letter}{number or ''}" for letter in ALPHABET)


# -- small shapes for a large call -------------------------------------------------------------------------------------


def settings(trial: Trial, call: TrialShapes, dtypes: Sequence[torch.dtype]) -> list[list[TrialShapes]]:
    """The call's own shapes if they are small, else two scales of them; for each scale, settings to try in order."""
    if call.elements <= OWN:
        return [[call]]
    return [[s for s in _scaled(trial, call, dtypes, first) if s.elements <= LARGEST] for first in SCALES]


def _scaled(trial: Trial, call: TrialShapes, dtypes: Sequence[torch.dtype], first: int) -> Iterator[TrialShapes]:
    """Settings with all sizes smaller; then with all sizes smaller that may be so on meta tensors; then with all of
    these but one.

    The last are needed because an operator may accept sizes on meta tensors that it cannot compute with.
    """
    sizes = sorted({n for s in (*call.shapes, *call.made) for n in s if n > SMALL}, reverse=True)
    new = {n: first + i for i, n in enumerate(reversed(sizes)) if n > first + i}

    def setting(chosen: Mapping[int, int]) -> TrialShapes:
        return TrialShapes(*(tuple(_mapped(s, chosen) for s in shapes) for shapes in (call.shapes, call.made)))

    if _fits(trial, setting(new), dtypes):
        yield setting(new)
    able: dict[int, int] = {}
    for size in (n for n in sizes if n in new):
        if _fits(trial, setting(able | {size: new[size]}), dtypes):
            able[size] = new[size]
    yield setting(able)
    for size in able:
        yield setting({n: m for n, m in able.items() if n != size})


def _mapped(shape: Shape, sizes: Mapping[int, int]) -> Shape:
    return tuple(sizes.get(n, n) for n in shape)


def _fits(trial: Trial, setting: TrialShapes, dtypes: Sequence[torch.dtype]) -> bool:
    """Whether the call, on meta tensors, makes results of these shapes from inputs of these shapes."""
    given = [torch.empty(s, dtype=d, device="meta") for s, d in zip(setting.shapes, dtypes, strict=True)]
    try:
        return tuple(tuple(y.shape) for y in trial.forward(given)) == setting.made
    except Fails:
        return False
