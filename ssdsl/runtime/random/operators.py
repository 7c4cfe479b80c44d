"""The results of PyTorch's random operators, each as a function of one draw from a distribution.

A captured graph and the single device follow the same rules, so both draw the same numbers in the same order. A rule
takes the operator's arguments by name, and a source of draws.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from ..ranks.numbers import has_numbers

Given = dict[str, Any]
Tensor = torch.Tensor


class Form(NamedTuple):
    """The form of a random tensor: its shape and dtype, and the tensor that it is `near`, or its device."""

    sizes: Sequence[int]
    dtype: torch.dtype
    near: Tensor | torch.device

    @classmethod
    def of(cls, tensor: Tensor) -> "Form":
        """The form of another tensor, near that."""
        return cls(tensor.shape, tensor.dtype, tensor)

    @property
    def device(self) -> torch.device:
        """The device of the tensor."""
        return self.near.device if isinstance(self.near, Tensor) else self.near


class DrawSource(Protocol):
    """A source of random tensors."""

    def draw(self, name: str, first: float, second: float, form: Form) -> Tensor:
        """A tensor of numbers of a distribution with these parameters."""


Rule = Callable[[DrawSource, Given], Any]


def _filling(name: str, *parameters: str) -> Rule:
    """An operator that fills a tensor, or a new one like it, from a distribution with these parameters."""

    def rule(source: DrawSource, given: Given) -> Tensor:
        first, second = ([float(given[p]) for p in parameters] + [0.0])[:2]
        return source.draw(name, first, second, Form.of(given["self"]))

    return rule


def _new(name: str, first: float, second: float) -> Rule:
    """An operator that makes a tensor of a fixed distribution, of a size or like another tensor."""
    return lambda source, given: _drawn(source, name, first, second, _form(given, torch.get_default_dtype()))


def _drawn(source: DrawSource, name: str, first: float, second: float, form: Form) -> Tensor:
    """A tensor of numbers of a distribution; complex ones are made of two real numbers each, and the deviation of a
    normal one is that of both together, as in torch."""
    if not form.dtype.is_complex:
        return source.draw(name, first, second, form)
    real = Form((*form.sizes, 2), form.dtype.to_real(), form.near)
    if name != "normal":
        return torch.view_as_complex(source.draw(name, first, second, real))
    made = torch.view_as_complex(source.draw(name, 0.0, second * math.sqrt(0.5), real))
    return made + first if first else made


def _form(given: Given, dtype: torch.dtype) -> Form:
    """The form of a new tensor."""
    like = given.get("self")
    if like is None:
        return Form(given["size"], _dtype(given, dtype), _device(given))
    return Form(like.shape, _dtype(given, like.dtype), _device(given) if given.get("device") else like)


def _dtype(given: Given, otherwise: torch.dtype) -> torch.dtype:
    wanted = given.get("dtype")
    return wanted if isinstance(wanted, torch.dtype) else otherwise  # a number if it is the schema's default


def _device(given: Given) -> torch.device:
    return torch.device(given.get("device") or "cpu")


def _integers(source: DrawSource, given: Given) -> Tensor:
    return source.draw("integers", given.get("low", 0), int(given["high"]), _form(given, torch.int64))


def _random(source: DrawSource, given: Given) -> Tensor:
    """Tensor.random_: integers up to the largest that the type holds exactly."""
    like, high = given["self"], given.get("to")
    end = _end_of(like.dtype) if high is None else high
    return source.draw("integers", given.get("from", 0), end, Form.of(like))


def _end_of(dtype: torch.dtype) -> int:
    """One more than the largest integer that `random_` draws without bounds."""
    if dtype.is_floating_point:
        return int(2 / torch.finfo(dtype).eps) + 1
    return min(int(torch.iinfo(dtype).max) if dtype != torch.bool else 1, 1 << 53) + 1


def _bernoulli(source: DrawSource, given: Given) -> Tensor:
    """Ones with a chance; with a tensor of chances, where a uniform number is below the chance."""
    like = given["self"]
    p: Any = given.get("p", like)
    if not isinstance(p, Tensor):
        return source.draw("bernoulli", float(p), 0.0, Form.of(like))
    if has_numbers(p):
        is_wrong = ((p < 0) | (p > 1)).any()
        if p.device.type != "cpu":
            torch._assert_async(~is_wrong)
        elif is_wrong:
            raise RuntimeError("bernoulli needs chances between 0 and 1")
    dtype = p.dtype if p.is_floating_point() else torch.float32
    uniform = source.draw("uniform", 0.0, 1.0, Form(like.shape, dtype, p))
    below = uniform < p
    return torch.ops.aten._to_copy.default(below, dtype=like.dtype)  # type: ignore[no-any-return]


def _normal(source: DrawSource, given: Given) -> Any:
    """Tensor.normal_, and torch.normal with numbers or tensors; no gradient flows to these."""
    mean: Any
    std: Any
    mean, std = (g.detach() if isinstance(g, Tensor) else float(g) for g in (given["mean"], given["std"]))
    if "self" in given or "size" in given:
        return _drawn(source, "normal", mean, std, _form(given, torch.get_default_dtype()))
    tensors = [g for g in (mean, std) if isinstance(g, Tensor)]
    sizes = torch.broadcast_shapes(*(t.shape for t in tensors))  # type: ignore[no-untyped-call]
    beside = [t for t in tensors if t.shape == sizes] or tensors
    normal: Any = source.draw("normal", 0.0, 1.0, Form(sizes, tensors[0].dtype, beside[0]))
    spread = normal * std
    return spread + mean


def _dropout(source: DrawSource, given: Given) -> tuple[Tensor, Tensor]:
    """The result and the mask of a dropout that drops something."""
    x, p = given["input"], given["p"]
    mask = source.draw("bernoulli", 1 - p, 0.0, Form(x.shape, torch.bool, x))
    kept = x * mask
    return kept * (1 / (1 - p)), mask


def _rrelu(source: DrawSource, given: Given) -> tuple[Tensor, Tensor]:
    """Leaky ReLU with a random slope for each element below zero, and the slopes of all."""
    x = given["self"]
    slope = source.draw("uniform", float(given["lower"]), float(given["upper"]), Form.of(x))
    below = x <= 0
    bent = x * slope
    return torch.where(below, bent, x), torch.where(below, slope, 1.0)


def _multinomial(source: DrawSource, given: Given) -> Any:
    """The outcomes with the shortest exponential waiting times, whose rates are the weights."""
    weights, count = given["self"], given["num_samples"]
    if not given["replacement"]:
        waits = source.draw("exponential", 1.0, 0.0, Form.of(weights))
        rates = weights / waits
        return rates.topk(count).indices
    *batch, outcomes = weights.shape
    waits = source.draw("exponential", 1.0, 0.0, Form((*batch, count, outcomes), weights.dtype, weights))
    row = weights.reshape(*batch, 1, outcomes)
    rates = row / waits
    return rates.argmax(-1)


def _permutation(source: DrawSource, given: Given) -> Tensor:
    dtype = _dtype(given, torch.int64)
    integers = source.draw("integers", 0, 1 << 53, Form((given["n"],), torch.int64, _device(given)))
    order = integers.sort(stable=True).indices
    return torch.ops.aten._to_copy.default(order, dtype=dtype) if dtype != torch.int64 else order


RULES: dict[str, Rule] = {
    "uniform": _filling("uniform", "from", "to"),
    "log_normal": _filling("log_normal", "mean", "std"),
    "exponential": _filling("exponential", "lambd"),
    "geometric": _filling("geometric", "p"),
    "cauchy": _filling("cauchy", "median", "sigma"),
    "bernoulli": _bernoulli,
    "random": _random,
    **dict.fromkeys(("normal", "normal_functional"), _normal),
    **dict.fromkeys(("rand", "rand_like"), _new("uniform", 0.0, 1.0)),
    **dict.fromkeys(("randn", "randn_like"), _new("normal", 0.0, 1.0)),
    **dict.fromkeys(("randint", "randint_like"), _integers),
    "native_dropout": _dropout,
    **dict.fromkeys(("rrelu", "rrelu_with_noise", "rrelu_with_noise_functional"), _rrelu),
    "multinomial": _multinomial,
    "randperm": _permutation,
}
