"""Rewrites random operators as pure functions of the draw's key and the logical positions of the numbers.

All keys of a step follow from its seed and number, which the trainer gives. The draws are numbered in the order of the
forward, as `runtime/random/single_device.py` numbers them on a single device, and follow the same rules. Operators that
torch composes of several draws arrive here decomposed, except recurrent layers and attention.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ssdsl.model.capture.call import CapturedCall, Tensor
from ssdsl.model.capture.capture import Capture
from ssdsl.model.capture.errors import RandomOperator
from ssdsl.model.dims.analyse import Analysis
from ssdsl.model.graph import Origin, Ref
from ssdsl.model.ops.registry import is_random
from ssdsl.model.rewrite.calls import inline, learning, on_meta, rename, retarget, temporary
from ssdsl.record import replace
from ssdsl.runtime.random.counter_rng import Generator
from ssdsl.runtime.random.operators import RULES, Form, Given
from ssdsl.text.diagnostic import PlanError

aten, own = torch.ops.aten, torch.ops.ssdsl
POSITIONS = "positions"  # the kind of the calls that make positions
EMPTY = ("empty", "empty_like", "new_empty", "empty_strided", "empty_permuted")  # tensors that a draw may fill
ZEROED = ("self", "p", "mean", "std")  # operands to which PyTorch gives a gradient of zeros, in draws of these kinds:
DRAWN_OVER = "bernoulli normal normal_functional uniform random log_normal exponential geometric cauchy".split()
CPU = torch.device("cpu")


def explicit_draws(capture: Capture, generator: Generator) -> Capture:
    """The same calls, where those that draw have a key and positions as operands.

    Raises PlanError for operators whose numbers are no function of their positions, the first of each kind.
    """
    writer = _Writer(capture, generator)
    for call in capture.calls:
        writer.write(call)
    if writer.refused:
        raise PlanError(*writer.refused.values())
    return writer.finished()


@dataclass(slots=True)
class _Writer:
    """Writes the new capture, call by call. For the rules of random operators it is the source of draws.

    `calls` are the new calls but for those that make keys, which are `keys`. `used` are all values that something
    reads, `makers` the old calls by their results, `learning` the values that may have a gradient.
    """

    capture: Capture
    generator: Generator
    calls: list[CapturedCall] = field(default_factory=list)
    keys: list[CapturedCall] = field(default_factory=list)
    refused: dict[str, RandomOperator] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    makers: dict[str, CapturedCall] = field(default_factory=dict)
    learning: set[str] = field(default_factory=set)
    call: CapturedCall = field(init=False)  # the one that is rewritten, and the tensors that its rule may read
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.learning = learning(self.capture)
        self.makers = self.capture.makers()
        self.used = {r for c in self.capture.calls for r in c.refs()} | self.capture.results()

    def write(self, call: CapturedCall) -> None:
        """Adds a call, or the calls that draw in its place."""
        out = self.capture.tensors.get(call.outputs[0])
        if not draws(call):
            self.calls.append(_dropped(call))
        elif out is not None and not math.prod(out.shape):  # takes no numbers
            made = retarget(call, aten.zeros.default, out.shape, dtype=getattr(torch, out.dtype), device=CPU)
            self.calls.append(replace(made, outputs=call.outputs[:1]))
        elif call.kind in RULES or call.kind in FUSED:
            self.calls += self._drawn(call)
        else:
            self.refused.setdefault(call.kind, RandomOperator.of(call))

    def _drawn(self, call: CapturedCall) -> list[CapturedCall]:
        """The calls that take the place of a random operator, by its rule."""
        names = [p.name for p in call.target._schema.arguments]
        is_fused = call.kind in FUSED and self.used.isdisjoint(call.outputs[1:])  # nothing reads a mask
        rule = (FUSED if is_fused else RULES)[call.kind]
        zeroed = self._zeroed(call)
        self.call, self.tensors = call, {}

        def rewritten(*items: Any) -> Any:
            given = dict(zip(names, items, strict=True))
            result = rule(self, given)
            for name in zeroed:
                never = aten.zeros.default((), dtype=torch.bool, device=CPU)
                result = torch.where(never, given[name], result)
            return result

        kind = call.kind.removeprefix("native_")
        return inline(rewritten, call, self.capture, [call.argument(name) for name in names], kind, self.tensors)

    def _zeroed(self, call: CapturedCall) -> list[str]:
        """The operands that have a gradient of zeros in PyTorch, although the result does not depend on them.

        The result of the draw is chosen by `where(False, operand, result)`, so that the operand has this gradient here
        too, and an optimizer decays the weights that it depends on.
        """
        given = {n: call.argument(n) for n in ZEROED} if call.kind in DRAWN_OVER else {}
        learning = {n: ref.value for n, ref in given.items() if isinstance(ref, Ref) and ref.value in self.learning}
        tensors = self.capture.tensors
        return [n for n, value in learning.items() if tensors[value].dtype == tensors[call.outputs[0]].dtype]

    def finished(self) -> Capture:
        """The capture with the keys before all other calls: one call makes the keys of all draws from the step's seed,
        and each of `self.keys` takes one of them."""
        if not self.keys:
            return self.capture
        count, keys = len(self.keys), self.keys[0].args[0].value
        seed = temporary("seed_and_step", self.capture, Tensor((2,), "int64"))
        self.capture.tensors[keys] = Tensor((count,), "int64")
        first = retarget(self.keys[0], own.step_keys.default, Ref(seed), count)
        calls = [replace(first, name=keys, outputs=(keys,)), *self.keys, *self.calls]
        return replace(self.capture, calls=calls, origins={**self.capture.origins, seed: Origin.SEED})

    # -- the source of draws -------------------------------------------------------------------------------------------

    def draw(self, name: str, first: float, second: float, form: Form) -> torch.Tensor:
        """The result of a call that draws from the distribution `name` with its two parameters. The draw is cut and
        placed like the tensor near it, if that has the same shape."""
        like = self._like(form.near, tuple(form.sizes)) if isinstance(form.near, torch.Tensor) else None
        draw = getattr(own, name).default
        operands = self.operands(form.sizes)
        return draw(like, float(first), float(second), *operands, form.dtype)  # type: ignore[no-any-return]

    def operands(self, sizes: Sequence[int]) -> tuple[Any, ...]:
        """The key of the next draw, the positions of its axes, their sizes and the generator."""
        number = len(self.keys)
        keys = self.keys[0].args[0] if number else Ref(temporary("step_keys", self.capture, Tensor((), "int64")))
        key = self._integers(f"key_{number}", (), own.key.default, keys, number)
        positions = [self._integers(POSITIONS, (n,), aten.arange.default, n, device=CPU) for n in sizes]
        return key, positions, tuple(sizes), self.generator

    def _integers(self, word: str, shape: tuple[int, ...], target: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The result of a new call, which the rule reads: a key or the positions of an axis."""
        name = temporary(word, self.capture, Tensor(shape, "int64"))
        made = replace(retarget(self.call, target, *args, **kwargs), name=name, outputs=(name,))
        if word == POSITIONS:
            self.calls.append(replace(made, kind=POSITIONS))
        else:
            self.keys.append(replace(made, path=""))
        self.tensors[name] = on_meta(self.capture.tensors[name])
        return self.tensors[name]

    def _like(self, near: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor | None:
        """The tensor; if it is an empty one, that of which it takes the shape. None if it has another shape."""
        name = next((n for n, tensor in self.tensors.items() if tensor is near), "")
        while name in self.makers and self.makers[name].kind in EMPTY:
            if self.makers[name].kind != "empty_like":
                return None
            name = self.makers[name].args[0].value
        if name:
            near = self.tensors.setdefault(name, on_meta(self.capture.tensors[name]))
        return near if near.shape == shape else None


def draws(call: CapturedCall) -> bool:
    """Whether a call draws numbers, so that its draw is numbered."""
    if not (is_random(call) or call.kind == "rrelu"):  # which torch does not tag
        return False
    if call.kind in ("dropout", "native_dropout"):
        return call.argument("train") is not False and 0 < call.argument("p") < 1
    return all(call.argument(p) is not False for p in ("train", "training"))


def _dropped(call: CapturedCall) -> CapturedCall:
    """The call; a dropout with p = 1, which draws nothing, becomes a product with zero."""
    drops = call.kind in ("dropout", "native_dropout") and call.argument("train") is not False
    if not drops or call.argument("p") != 1:
        return call
    return replace(retarget(call, aten.mul.Tensor, call.argument("input"), 0.0), outputs=call.outputs[:1])


def _dropout(writer: _Writer, given: Given) -> torch.Tensor:
    x = given["input"]
    return own.dropout.default(x, given["p"], *writer.operands(x.shape))  # type: ignore[no-any-return]


def _attention(writer: _Writer, given: Given) -> torch.Tensor:
    words = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    query, keys = given["query"].shape, given["key"].shape
    # the shape of the dropped scores; grouped keys (`enable_gqa`) have fewer heads than queries, and do not broadcast
    batch = torch.broadcast_shapes(query[:-2], query[:-2] if given["enable_gqa"] else keys[:-2])  # type: ignore[no-untyped-call]
    operands = writer.operands((*batch, query[-2], keys[-2]))
    return own.attention_dropout.default(*map(given.__getitem__, words), *operands)  # type: ignore[no-any-return]


# operators for each of which one operator of ssdsl draws, and computes the rest
FUSED = {
    **dict.fromkeys(("dropout", "native_dropout"), _dropout),
    "scaled_dot_product_attention": _attention,
}


def merge_positions(capture: Capture, found: Analysis) -> None:
    """Makes one value of the positions of axes that the analysis found to be the same; changes both arguments in place.

    This is impossible before the analysis: positions get their dimension from the drawn tensor, and axes of equal size
    may be different dimensions.
    """
    first: dict[tuple[int, ...], str] = {}
    names: dict[str, str] = {}
    for call in (c for c in capture.calls if c.kind == POSITIONS):
        (axis,) = found.axes[call.name]
        names[call.name] = first.setdefault(tuple(found.factors.leaves(axis)), call.name)
    calls = (c for c in capture.calls if names.get(c.name, c.name) == c.name)
    capture.calls = [rename(c, names) for c in calls]
    for reading in found.readings:
        reading.call = rename(reading.call, names)
        reading.inputs = [(names.get(value, value), axes, once) for value, axes, once in reading.inputs]
