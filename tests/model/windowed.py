"""Random calls of the operators that read windows, as captured ones: their rows say which, their parts compute them."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ssdsl import runtime
from ssdsl.model.capture.call import CapturedCall, Tensor
from ssdsl.model.capture.overloads import target_of
from ssdsl.model.dims.signature import Pattern
from ssdsl.model.graph import Dim, DimWindow, Operand, Operator, Ref, Stage
from ssdsl.model.ops.reader import TypedCall
from ssdsl.model.ops.registry import row

aten = torch.ops.aten
Arguments = list[Any]
WORDS = {1: "linear", 2: "bilinear", 3: "trilinear"}


@dataclass
class Windowed:
    """A call: its tensors by name, those first that its arguments name."""

    call: CapturedCall
    tensors: dict[str, torch.Tensor]
    results: list[torch.Tensor]
    space: int

    @property
    def signature(self) -> Any:
        described = {n: Tensor(tuple(t.shape), "float32") for n, t in self.tensors.items()}
        made = zip(self.call.outputs, self.results, strict=True)
        described |= {n: Tensor(tuple(t.shape), "float32") for n, t in made}
        return row(self.call).dims(TypedCall(self.call, described))

    def operator(self) -> Operator:
        """The operator, with one dimension for each letter."""
        letters: dict[str, int] = {}
        dims: list[Dim] = []

        def operand(name: str, pattern: Pattern, tensor: torch.Tensor) -> Operand:
            axes = pattern.fit(tensor.dim())
            for axis, size in zip(axes, tensor.shape, strict=True):
                known = math.prod(letter.size or 1 for letter in axis)
                for letter in (x for x in axis if x.name not in letters):
                    window = None
                    if letter.window is not None:
                        window = DimWindow(letters[letter.window.of], letter.window.shape)
                    letters[letter.name] = len(dims)
                    fixed = "fixed" if letter.fixed else ""
                    dims.append(Dim(letter.name, letter.size or size // known, len(dims), fixed, False, window))
            return Operand(name, tuple(tuple(letters[x.name] for x in axis) for axis in axes), pattern.once)

        found = self.signature
        outputs = tuple(map(operand, self.call.outputs, found.outputs, self.results))
        inputs = tuple(map(operand, self.tensors, found.inputs, self.tensors.values()))
        target = target_of(self.call.target)
        form = "op", self.call.kind, target.name, "", "", Stage.COMPUTE, (target, *self.call.args), ()
        return Operator(*form, inputs, outputs, tuple(dims), row(self.call))

    def whole(self, x: torch.Tensor) -> list[torch.Tensor]:
        given = [_given(a, {**self.tensors, "x": x}) for a in self.call.args]
        return _tensors(self.call.target(*given))

    def part(self, x: torch.Tensor, parts: Sequence[runtime.Part]) -> list[torch.Tensor]:
        """The results of the function that the row names."""
        parameters = self.call.target._schema.arguments
        named = {p.name: repr(p.default_value) for p in parameters}
        for p, a in zip(parameters, self.call.args, strict=False):
            named[p.name] = _written(a)
        text = row(self.call).windows.format_map(named | {"parts": "parts"})
        functions = {name: getattr(runtime, name) for name in runtime.NAMES}
        return _tensors(eval(text, functions | self.tensors | {"x": x, "parts": parts}))


def _given(argument: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(argument, tuple):
        return [_given(a, tensors) for a in argument]
    return tensors[argument.value] if isinstance(argument, Ref) else argument


def _written(argument: Any) -> str:
    if isinstance(argument, tuple):
        return f"[{', '.join(map(_written, argument))}]"
    return str(argument.value) if isinstance(argument, Ref) else repr(argument)


def _tensors(found: Any) -> list[torch.Tensor]:
    return [*found] if isinstance(found, (tuple, list)) else [found]


def drawn(kind: str, seed: int) -> Windowed | None:
    """A call of this kind; None where the numbers that were drawn make none."""
    draw = random.Random(f"{kind} {seed}")
    space = draw.choice((2, 3) if kind == "max_pool_with_indices" else (1, 1, 2, 2, 3))
    sizes = [draw.randint(1, (17, 11, 6)[space - 1]) for _ in range(space)]
    channels = draw.choice((2, 4))
    batch = [] if draw.random() < 0.2 and not kind.startswith("upsample") else [2]
    tensors = {"x": torch.randn([*batch, channels, *sizes], generator=torch.Generator().manual_seed(seed))}
    name, arguments, weights = KINDS[kind](draw, space, sizes, channels)
    tensors |= weights
    target = getattr(getattr(aten, name), _overload(name))
    values = [_given(a, tensors) for a in arguments]
    try:
        results = _tensors(target(*values))
    except RuntimeError:
        return None
    if any(0 in r.shape or r.isinf().any() for r in results):  # torch writes anywhere in backward of empty maxima
        return None
    outputs = tuple(f"y{k}" for k in range(len(results)))
    call = CapturedCall("op", name, target, tuple(arguments), {}, "", "", outputs)
    return Windowed(call, tensors, results, space)


def _overload(name: str) -> str:
    if name.startswith("upsample"):
        return "vec"
    if name == "slice":
        return "Tensor"
    return "input" if name in ("conv_transpose2d", "conv_transpose3d") else "default"


def _each(draw: random.Random, space: int, low: int, high: int) -> list[int]:
    return [draw.randint(low, high) for _ in range(space)]


def _convolution(draw: random.Random, space: int, sizes: list[int], channels: int) -> tuple[str, Arguments, Any]:
    kernel, groups = _each(draw, space, 1, 5), draw.choice((1, 1, 2, channels))
    padding: Any = draw.choice(("same", "valid", _each(draw, space, 0, 4), [draw.randint(0, 2)]))
    stride = [1] if padding == "same" else _each(draw, space, 1, 4)
    out = groups * draw.choice((1, 2))
    weights = {"w": torch.randn(out, channels // groups, *kernel)} | (
        {"b": torch.randn(out)} if draw.random() < 0.7 else {}
    )
    bias = Ref("b") if "b" in weights else None
    name = f"conv{space}d"
    arguments = [Ref("x"), Ref("w"), bias, stride, padding, _each(draw, space, 1, 3), groups]
    return name, arguments, weights


def _transposed(draw: random.Random, space: int, sizes: list[int], channels: int) -> tuple[str, Arguments, Any]:
    kernel, groups, stride = _each(draw, space, 1, 5), draw.choice((1, 2)), _each(draw, space, 1, 4)
    out = groups * draw.choice((1, 2))
    weights = {"w": torch.randn(channels, out // groups, *kernel)} | (
        {"b": torch.randn(out)} if draw.random() < 0.7 else {}
    )
    bias = Ref("b") if "b" in weights else None
    behind = [draw.randint(0, n - 1) for n in stride]
    padding, dilation = _each(draw, space, 0, 3), _each(draw, space, 1, 3)
    return f"conv_transpose{space}d", [Ref("x"), Ref("w"), bias, stride, padding, behind, groups, dilation], weights


def _window(draw: random.Random, space: int) -> tuple[list[int], list[int], list[int]]:
    kernel = _each(draw, space, 1, 5)
    stride = draw.choice(([], _each(draw, space, 1, 4)))
    return kernel, stride, [draw.randint(0, k // 2) for k in kernel]


def _maximum(name: str) -> Callable[..., Any]:
    def drawn(draw: random.Random, space: int, sizes: list[int], channels: int) -> tuple[str, Arguments, Any]:
        dilation = _each(draw, space, 1, 2)
        return name.format(space), [Ref("x"), *_window(draw, space), dilation, draw.random() < 0.5], {}

    return drawn


def _mean(draw: random.Random, space: int, sizes: list[int], channels: int) -> tuple[str, Arguments, Any]:
    divisor = [draw.choice((None, None, 3))] if space > 1 else []
    arguments = [Ref("x"), *_window(draw, space), draw.random() < 0.5, draw.random() < 0.5, *divisor]
    return f"avg_pool{space}d", arguments, {}


def _resampled(draw: random.Random, space: int, sizes: list[int]) -> tuple[Any, Any]:
    factors = draw.choice(
        ([2.0] * space, [float(draw.randint(1, 4)) for _ in sizes], [draw.uniform(0.4, 3) for _ in sizes])
    )
    larger = draw.choice(([n * draw.randint(1, 4) for n in sizes], [draw.randint(1, 3 * n) for n in sizes]))
    return draw.choice(((larger, None), (None, factors)))


def _nearest(draw: random.Random, space: int, sizes: list[int], channels: int) -> tuple[str, Arguments, Any]:
    return f"upsample_nearest{space}d", [Ref("x"), *_resampled(draw, space, sizes)], {}


def _linear(draw: random.Random, space: int, sizes: list[int], channels: int) -> tuple[str, Arguments, Any]:
    size, factors = _resampled(draw, space, sizes)
    return f"upsample_{WORDS[space]}{space}d", [Ref("x"), size, draw.random() < 0.5, factors], {}


def _padded(draw: random.Random, space: int, sizes: list[int], channels: int) -> tuple[str, Arguments, Any]:
    amounts = [draw.randint(-((n - 1) // 2), 4) for n in reversed(sizes) for _ in range(2)]
    return "pad", [Ref("x"), amounts, "constant", draw.choice((None, 0.5))], {}


def _sliced(draw: random.Random, space: int, sizes: list[int], channels: int) -> tuple[str, Arguments, Any]:
    n = sizes[-1]
    start, end = draw.choice((None, 0, n // 4, -n + n // 5)), draw.choice((None, n - n // 6, -(n // 6) or None, 2 * n))
    return "slice", [Ref("x"), -1, start, end, draw.choice((1, 1, 2))], {}


def _joined(draw: random.Random, space: int, sizes: list[int], channels: int) -> tuple[str, Arguments, Any]:
    shape = [2, channels, *sizes[:-1], draw.randint(1, max(1, sizes[-1] - 1))]
    return "cat", [(Ref("x"), Ref("w")), -1], {"w": torch.randn(shape)}


KINDS: dict[str, Callable[..., tuple[str, Arguments, dict[str, torch.Tensor]]]] = {
    "conv": _convolution,
    "conv_transpose": _transposed,
    "max_pool": _maximum("max_pool{}d"),
    "max_pool_with_indices": _maximum("max_pool{}d_with_indices"),
    "avg_pool": _mean,
    "upsample_nearest": _nearest,
    "upsample_linear": _linear,
    "pad": _padded,
    "slice": _sliced,
    "cat": _joined,
}
