"""Rewrites random operators as pure functions of the draw's key and the logical positions of the numbers.

All keys of a step follow from its seed and number, which the trainer gives. The draws are numbered in the order of the
forward, as `runtime/random/single_device.py` numbers them on a single device. Operators that torch composes of several
draws arrive here decomposed, except recurrent layers and attention.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from ssdsl.model.capture.call import CapturedCall, Tensor
from ssdsl.model.capture.capture import Capture, kind_of
from ssdsl.model.capture.errors import RandomOperator
from ssdsl.model.dims.analyse import Analysis
from ssdsl.model.graph import Origin, Ref
from ssdsl.model.ops.registry import is_random, row
from ssdsl.model.rewrite.calls import rename
from ssdsl.runtime.random.counter_rng import Generator
from ssdsl.runtime.random.single_device import end_of
from ssdsl.text.diagnostic import PlanError

aten, own = torch.ops.aten, torch.ops.ssdsl
POSITIONS = "positions"  # the kind of the calls that make positions
EMPTY = ("empty", "empty_like", "new_empty", "empty_strided", "empty_permuted")
ZEROED = ("self", "p", "mean", "std")  # PyTorch gives these operands of draws of the kinds below a gradient of zeros
DRAWN_OVER = "bernoulli normal normal_functional uniform random log_normal exponential geometric cauchy".split()


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
    """Writes the new capture, call by call."""

    capture: Capture
    generator: Generator
    calls: list[CapturedCall] = field(default_factory=list)
    keys: list[CapturedCall] = field(default_factory=list)
    refused: dict[str, RandomOperator] = field(default_factory=dict)
    count: int = 0
    used: set[str] = field(default_factory=set)
    makers: dict[str, CapturedCall] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    learning: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.learning = {n for n, t in self.capture.tensors.items() if t.differentiable}
        self.makers = {o: c for c in self.capture.calls for o in c.outputs}
        self.used = {r for c in self.capture.calls for r in c.refs()} | self.capture.results()
        self.taken = {*self.capture.tensors, *self.capture.origins, *(c.name for c in self.capture.calls)}

    def write(self, call: CapturedCall) -> None:
        """Adds a call, or the calls that draw in its place."""
        if self.is_empty(call):
            out = self.capture.tensors[call.outputs[0]]
            zeros = {"dtype": getattr(torch, out.dtype), "device": torch.device("cpu")}
            made = replace(call, kind="zeros", target=aten.zeros.default, args=(out.shape,), kwargs=zeros)
            self.calls.append(replace(made, outputs=call.outputs[:1]))
        elif not draws(call):
            self.calls.append(_dropped(call))
        elif rewrite := REWRITES.get(str(call.target)) or REWRITES.get(f"aten.{call.kind}"):
            rewrite(self, call)
            self._give_zeros(call)
        else:
            refusal = RandomOperator(None, call.kind, call.path or "the model", call.source)
            self.refused.setdefault(call.kind, refusal)
        self._follow(call)

    def _follow(self, call: CapturedCall) -> None:
        """Notes the results of a captured call that may have a gradient."""
        passes = call.kind in DRAWN_OVER or not draws(call)
        if passes and not row(call).stops_gradient and not self.learning.isdisjoint(call.refs()):
            tensors = self.capture.tensors
            self.learning.update(o for o in call.outputs if o in tensors and tensors[o].has_fractions)

    def _give_zeros(self, call: CapturedCall) -> None:
        """Makes a draw a choice between the numbers and an operand with a gradient, which never takes the operand.

        So the operand's gradient is zeros, as in PyTorch, and an optimizer decays the weights that it depends on.
        """
        out = self.capture.tensors[call.outputs[0]]
        given = [call.argument(name) for name in ZEROED] if call.kind in DRAWN_OVER else []
        for ref in (a for a in given if isinstance(a, Ref) and a.value in self.learning):
            if self.tensor(ref).dtype == out.dtype:
                drawn = self.name(f"{call.name}_drawn")
                self.capture.tensors[drawn] = out
                self.calls[-1] = replace(self.calls[-1], name=drawn, outputs=(drawn,))
                bools = {"dtype": torch.bool, "device": torch.device("cpu")}
                never = self.call(call, "never", Tensor((), "bool"), aten.zeros.default, (), **bools)
                self.result(call, aten.where.self, never, ref, Ref(drawn), kind=call.kind)

    def is_empty(self, call: CapturedCall) -> bool:
        """Whether a call would draw a tensor without elements, which takes no numbers."""
        return draws(call) and not math.prod(self.capture.tensors[call.outputs[0]].shape)

    def finished(self) -> Capture:
        """The capture with the keys before all other calls, and without tensors that only gave a shape to a draw."""
        if not self.count:
            return self.capture
        seed, keys = self.name("seed_and_step"), self.keys[0].args[0].value
        tensors, origins = self.capture.tensors, self.capture.origins
        tensors[seed], tensors[keys] = Tensor((2,), "int64"), Tensor((self.count,), "int64")
        first = replace(self.keys[0], name=keys, kind="step_keys", target=own.step_keys.default, outputs=(keys,))
        first = replace(first, args=(Ref(seed), self.count))
        calls = self._needed([*self.keys, *self.calls])
        return replace(self.capture, calls=[first, *calls], origins={**origins, seed: Origin.SEED})

    def _needed(self, calls: list[CapturedCall]) -> list[CapturedCall]:
        """The calls without draws that nothing reads, and without empty tensors that only gave a shape to a draw."""
        wanted = self.capture.results()
        kept = []
        for call in reversed(calls):
            can_go = call.kind in (*EMPTY, POSITIONS) or call.target.namespace == "ssdsl"
            if not can_go or not wanted.isdisjoint(call.outputs):
                wanted.update(call.refs())
                kept.append(call)
        return kept[::-1]

    # -- the parts of a draw -------------------------------------------------------------------------------------------

    def name(self, wanted: str) -> str:
        """A name that is not in use: the wanted one, or a numbered one."""
        found, number = wanted, 1
        while found in self.taken:
            found, number = f"{wanted}_{number}", number + 1
        self.taken.add(found)
        return found

    def call(
        self,
        near: CapturedCall,
        word: str,
        tensor: Tensor,
        target: torch._ops.OpOverload,
        *args: object,
        **kwargs: object,
    ) -> Ref:
        """Adds a call that makes one tensor."""
        name = self.name(f"{near.name}_{word}")
        self.capture.tensors[name] = tensor
        made = replace(near, kind=kind_of(target), target=target, args=args, kwargs=kwargs, name=name)
        self.calls.append(replace(made, outputs=(name,)))
        return Ref(name)

    def operands(self, near: CapturedCall, sizes: Sequence[int]) -> tuple[object, ...]:
        """The key of the next draw, the positions of its axes, their sizes and the generator."""
        key, keys = self.name(f"key_{self.count}"), self.keys[0].args[0] if self.keys else Ref(self.name("step_keys"))
        self.capture.tensors[key] = Tensor((), "int64")
        target = own.key.default
        self.keys.append(CapturedCall(key, "key", target, (keys, self.count), {}, "", near.source, (key,)))
        self.count += 1
        return (Ref(key), tuple(self._positions(near, n) for n in sizes), tuple(sizes), self.generator)

    def _positions(self, near: CapturedCall, size: int) -> Ref:
        name = self.name("positions")
        self.capture.tensors[name] = Tensor((size,), "int64")
        kwargs = {"device": torch.device("cpu")}
        made = replace(near, kind=POSITIONS, target=aten.arange.default, args=(size,), kwargs=kwargs)
        self.calls.append(replace(made, name=name, outputs=(name,)))
        return Ref(name)

    def draw(self, near: CapturedCall, name: str, first: float, second: float, like: Ref | None, out: Tensor) -> Ref:
        """Adds a call that draws; `like` is a tensor of the same shape, which decides where the draw is placed."""
        args = (like, float(first), float(second), *self.operands(near, out.shape), getattr(torch, out.dtype))
        return self.call(near, name, out, getattr(own, name).default, *args)

    def result(self, call: CapturedCall, target: torch._ops.OpOverload, *args: object, kind: str = "") -> None:
        """Adds the call that makes the first result of the one that is rewritten."""
        kind = kind or kind_of(target)
        self.calls.append(replace(call, kind=kind, target=target, args=args, kwargs={}, outputs=call.outputs[:1]))

    def like(self, call: CapturedCall, shape: tuple[int, ...]) -> Ref | None:
        """The tensor of this shape that a call takes only the shape of, if it is no empty one."""
        given = call.argument("self")
        while isinstance(given, Ref) and (maker := self.makers.get(given.value)) and maker.kind in EMPTY:
            given = maker.args[0] if maker.kind == "empty_like" else None
        return given if isinstance(given, Ref) and self.capture.tensors[given.value].shape == shape else None

    def tensor(self, ref: Ref) -> Tensor:
        return self.capture.tensors[ref.value]


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
    made = replace(call, kind="mul", target=aten.mul.Tensor, args=(call.argument("input"), 0.0), kwargs={})
    return replace(made, outputs=call.outputs[:1])


# -- each random operator ----------------------------------------------------------------------------------------------

Rewrite = Callable[[_Writer, CapturedCall], None]


def _filling(name: str, *parameters: str | float) -> Rewrite:
    """A rewrite to one draw from a distribution; parameters are numbers, or the names of arguments."""

    def rewrite(writer: _Writer, call: CapturedCall) -> None:
        out = writer.capture.tensors[call.outputs[0]]
        first, second = ([call.argument(p) if isinstance(p, str) else p for p in parameters] + [0.0])[:2]
        like = writer.like(call, out.shape)
        args = (like, float(first or 0), float(second), *writer.operands(call, out.shape), getattr(torch, out.dtype))
        writer.result(call, getattr(own, name).default, *args, kind=call.kind)

    return rewrite


def _random(writer: _Writer, call: CapturedCall) -> None:
    dtype = getattr(torch, writer.capture.tensors[call.outputs[0]].dtype)
    high = call.argument("to")
    _filling("integers", call.argument("from") or 0, end_of(dtype) if high is None else high)(writer, call)


def _compared(writer: _Writer, call: CapturedCall) -> None:
    """Bernoulli with a tensor of probabilities: one where a uniform number is below the probability."""
    out = writer.capture.tensors[call.outputs[0]]
    chances = call.argument("p") if isinstance(call.argument("p"), Ref) else call.argument("self")
    dtype = writer.tensor(chances).dtype
    wide = Tensor(out.shape, dtype if dtype.startswith(("float", "bfloat")) else "float32")
    like = chances if writer.tensor(chances).shape == out.shape else None
    number = writer.draw(call, "uniform", 0.0, 1.0, like, wide)
    below = writer.call(call, "below", Tensor(out.shape, "bool"), aten.lt.Tensor, number, chances)
    made = replace(call, kind=call.kind, target=aten._to_copy.default, args=(below,), outputs=call.outputs[:1])
    writer.calls.append(replace(made, kwargs={"dtype": getattr(torch, out.dtype)}))


def _scaled(writer: _Writer, call: CapturedCall) -> None:
    """Standard normal numbers times a deviation plus a mean; no gradient flows to these."""
    out = writer.capture.tensors[call.outputs[0]]
    mean, std = (
        writer.call(call, "still", writer.tensor(a), aten.detach.default, a) if isinstance(a, Ref) else a
        for a in (call.argument("mean"), call.argument("std"))
    )
    like = next((a for a in (mean, std) if isinstance(a, Ref) and writer.tensor(a).shape == out.shape), None)
    number = writer.draw(call, "normal", 0.0, 1.0, like, out)
    wide = writer.call(call, "spread", out, aten.mul.Tensor, number, std)
    writer.result(call, aten.add.Tensor, wide, mean, kind=call.kind)


def _dropout(writer: _Writer, call: CapturedCall) -> None:
    x, p = call.argument("input"), call.argument("p")
    operands = writer.operands(call, writer.tensor(x).shape)
    if len(call.outputs) == 1 or call.outputs[1] not in writer.used:
        writer.result(call, own.dropout.default, x, p, *operands, kind="dropout")
        return
    mask = replace(call, name=writer.name(f"{call.name}_mask"), outputs=call.outputs[1:])
    writer.result(mask, own.bernoulli.default, x, 1 - p, 0.0, *operands, torch.bool, kind="dropout")
    kept = writer.call(call, "kept", writer.tensor(x), aten.mul.Tensor, x, Ref(call.outputs[1]))
    writer.result(call, aten.div.Tensor, kept, 1 - p, kind="dropout")


def _attention(writer: _Writer, call: CapturedCall) -> None:
    given = [call.argument(n) for n in ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")]
    query, key = (writer.tensor(t).shape for t in given[:2])
    batch = torch.broadcast_shapes(query[:-2], query[:-2] if call.argument("enable_gqa") else key[:-2])  # type: ignore[no-untyped-call]
    operands = writer.operands(call, (*batch, query[-2], key[-2]))
    target = own.attention_dropout.default
    writer.result(call, target, *given, bool(call.argument("enable_gqa")), *operands, kind=call.kind)


def _rrelu(writer: _Writer, call: CapturedCall) -> None:
    """Leaky ReLU with a random slope for each element below zero."""
    x, out = call.argument("self"), writer.capture.tensors[call.outputs[0]]
    slope = writer.draw(call, "uniform", call.argument("lower"), call.argument("upper"), x, out)
    below = writer.call(call, "below", Tensor(out.shape, "bool"), aten.le.Scalar, x, 0)
    bent = writer.call(call, "bent", out, aten.mul.Tensor, x, slope)
    writer.result(call, aten.where.self, below, bent, x, kind=call.kind)


def _multinomial(writer: _Writer, call: CapturedCall) -> None:
    """Draws the outcomes with the shortest exponential waiting times, whose rates are the weights."""
    weights, count = call.argument("self"), call.argument("num_samples")
    whole = writer.tensor(weights)
    if not call.argument("replacement"):
        waits = writer.draw(call, "exponential", 1.0, 0.0, weights, whole)
        rates = writer.call(call, "rates", whole, aten.div.Tensor, weights, waits)
        first = writer.name(f"{call.name}_first")
        writer.capture.tensors[first] = replace(whole, shape=(*whole.shape[:-1], count))
        made = replace(call, kind=call.kind, target=aten.topk.default, args=(rates, count), kwargs={})
        writer.calls.append(replace(made, outputs=(first, call.outputs[0])))
        return
    row = replace(whole, shape=(*whole.shape[:-1], 1, whole.shape[-1]))
    shape = replace(whole, shape=(*whole.shape[:-1], count, whole.shape[-1]))
    waits = writer.draw(call, "exponential", 1.0, 0.0, None, shape)
    rows = writer.call(call, "row", row, aten.reshape.default, weights, row.shape)
    rates = writer.call(call, "rates", shape, aten.div.Tensor, rows, waits)
    writer.result(call, aten.argmax.default, rates, -1, kind=call.kind)


def _permutation(writer: _Writer, call: CapturedCall) -> None:
    size = (call.argument("n"),)
    keys = writer.draw(call, "integers", 0, 1 << 53, None, Tensor(size, "int64"))
    ordered = writer.name(f"{call.name}_ordered")
    writer.capture.tensors[ordered] = Tensor(size, "int64")
    made = replace(call, target=aten.sort.stable, args=(keys,), kwargs={"stable": True})
    writer.calls.append(replace(made, outputs=(ordered, call.outputs[0])))


REWRITES: dict[str, Rewrite] = {
    **dict.fromkeys(("aten.dropout", "aten.native_dropout"), _dropout),
    "aten.scaled_dot_product_attention": _attention,
    "aten.bernoulli.p": _filling("bernoulli", "p"),
    **dict.fromkeys(("aten.bernoulli.default", "aten.bernoulli.Tensor"), _compared),
    **dict.fromkeys(("aten.rand", "aten.rand_like"), _filling("uniform", 0.0, 1.0)),
    **dict.fromkeys(("aten.randn", "aten.randn_like"), _filling("normal", 0.0, 1.0)),
    **dict.fromkeys(("aten.randint", "aten.randint_like"), _filling("integers", "low", "high")),
    "aten.uniform": _filling("uniform", "from", "to"),
    "aten.random": _random,
    **dict.fromkeys(("aten.normal_functional", "aten.normal.float_float"), _filling("normal", "mean", "std")),
    **dict.fromkeys(("aten.normal.Tensor_float", "aten.normal.float_Tensor", "aten.normal.Tensor_Tensor"), _scaled),
    "aten.log_normal": _filling("log_normal", "mean", "std"),
    "aten.exponential": _filling("exponential", "lambd"),
    "aten.geometric": _filling("geometric", "p"),
    "aten.cauchy": _filling("cauchy", "median", "sigma"),
    **dict.fromkeys(("aten.rrelu", "aten.rrelu_with_noise", "aten.rrelu_with_noise_functional"), _rrelu),
    "aten.multinomial": _multinomial,
    "aten.randperm": _permutation,
}


def merge_positions(capture: Capture, found: Analysis) -> None:
    """Makes one value, in place, of the positions of axes that the analysis found to be the same.

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
