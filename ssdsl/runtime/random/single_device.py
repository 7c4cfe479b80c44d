"""A mode under which PyTorch's random operators on a single device draw the numbers that a program's parts draw.

The draws of a step are numbered in the order in which they run, as a captured graph numbers its random operators. Each
draw takes its key by its number, and all positions of its tensor.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..ranks.control import bytes_of
from .counter_rng import Generator, step_keys
from .distributions import DISTRIBUTIONS

Given = dict[str, Any]
MANY = 64


class CannotDraw(NotImplementedError):
    """A random operator whose numbers are not a function of their positions."""


class Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Handles all random operators in a block, for one step, forward and backward.

    An activation checkpoint that recomputes in backward draws the same numbers again. Raises CannotDraw.
    """

    def __init__(self, seed: int, step: int, generator: Generator = "hash") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seed_and_step = torch.tensor([seed, step])
        self.generator: Generator = generator
        self.count = 0
        self.keys = step_keys(self.seed_and_step, MANY)
        self.numbers: dict[
            bytes, int
        ] = {}  # the first number of each draw by the state of torch's generator, which a checkpoint resets
        self.attention = _MathAttention()

    def __enter__(self) -> "Draws":
        super().__enter__()  # type: ignore[no-untyped-call]
        self.attention.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        self.attention.__exit__(*error)  # type: ignore[no-untyped-call]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _is_seeded(function):
            return function(*args, **kwargs)
        given = {p.name: p.default_value for p in function._schema.arguments}
        given |= dict(zip(given, args, strict=False)) | kwargs
        if not given.get("dropout", 1) or not given.get("dropout_p", 1) or given.get("training") is False:
            return function(*args, **kwargs)  # a dropout that is inactive
        draw = DRAWN.get(function.overloadpacket.__name__)
        if draw is None or "out" in given:
            raise CannotDraw(f"{function} draws numbers that are no function of their positions")
        return draw(self, given)

    def key(self, device: torch.device) -> torch.Tensor:
        """The key of the next draw."""
        state = bytes_of(torch.get_rng_state())
        is_again = torch._C._current_graph_task_id() >= 0 and state in self.numbers  # in backward
        number = self.numbers[state] if is_again else self.count
        self.numbers[state] = number
        self.count += not is_again
        torch.rand(1)
        if number >= len(self.keys):
            self.keys = step_keys(self.seed_and_step, 2 * number)
        return self.keys[number].to(device)

    def draw(
        self, name: str, first: float, second: float, sizes: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """A tensor of random numbers from a distribution."""
        if 0 in sizes:
            return torch.empty(*sizes, dtype=dtype, device=device)
        index, sizes = self.index(sizes, device)
        return DISTRIBUTIONS[name](first, second, self.key(device), index, sizes, self.generator, dtype)

    def index(self, sizes: Sequence[int], device: torch.device) -> tuple[Sequence[torch.Tensor], Sequence[int]]:
        """The positions of a tensor's elements, and the sizes of the axes they are positions on."""
        return [torch.arange(n, device=device) for n in sizes], sizes

    def skip(self, function: Any) -> None:
        """Counts the draw of an operator that does not run."""
        self.count += torch.Tag.nondeterministic_seeded in function.tags


@cache
def _is_seeded(function: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in function.tags


class _MathAttention(TorchFunctionMode):
    """Computes attention with dropout through its probabilities, because fused kernels draw their own numbers."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is not torch.nn.functional.scaled_dot_product_attention:
            return function(*args, **kwargs)
        p = args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
        if not p:
            return function(*args, **kwargs)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return function(*args, **kwargs)


# -- each random operator ----------------------------------------------------------------------------------------------


def _filling(name: str, *parameters: str) -> Callable[[Draws, Given], torch.Tensor]:
    """An operator that fills a tensor, or a new one like it, from a distribution with these parameters."""

    def run(draws: Draws, given: Given) -> torch.Tensor:
        first, second = ([float(given[p]) for p in parameters] + [0.0])[:2]
        like = given["self"]
        return draws.draw(name, first, second, like.shape, like.dtype, like.device)

    return run


def _new(name: str, first: float, second: float) -> Callable[[Draws, Given], torch.Tensor]:
    """An operator that makes a tensor of a fixed distribution, of a size or like another tensor."""

    def run(draws: Draws, given: Given) -> torch.Tensor:
        return draws.draw(name, first, second, *_form(given, torch.get_default_dtype()))

    return run


def _form(given: Given, dtype: torch.dtype) -> tuple[Sequence[int], torch.dtype, torch.device]:
    """The shape, dtype and device of a new tensor."""
    like = given.get("self")
    sizes = given["size"] if like is None else like.shape
    device = given.get("device") or (torch.device("cpu") if like is None else like.device)
    wanted = given.get("dtype")  # a number if it is the schema's default
    return (
        sizes,
        wanted if isinstance(wanted, torch.dtype) else (dtype if like is None else like.dtype),
        torch.device(device),
    )


def _integers(draws: Draws, given: Given) -> torch.Tensor:
    sizes, dtype, device = _form(given, torch.int64)
    return draws.draw("integers", given.get("low", 0), int(given["high"]), sizes, dtype, device)


def _random(draws: Draws, given: Given) -> torch.Tensor:
    """Tensor.random_: integers up to the largest that the type holds exactly."""
    like = given["self"]
    low, high = given.get("from", 0), given.get("to")
    return draws.draw(
        "integers", low, end_of(like.dtype) if high is None else high, like.shape, like.dtype, like.device
    )


def end_of(dtype: torch.dtype) -> int:
    """One more than the largest integer that `random_` draws without bounds."""
    if dtype.is_floating_point:
        return int(2 / torch.finfo(dtype).eps) + 1
    return min(int(torch.iinfo(dtype).max) if dtype != torch.bool else 1, 1 << 53) + 1


def _bernoulli(draws: Draws, given: Given) -> torch.Tensor:
    like = given["self"]
    p: Any = given.get("p", like)
    if not isinstance(p, torch.Tensor):
        return draws.draw("bernoulli", float(p), 0.0, like.shape, like.dtype, like.device)
    if not p.is_meta and bool(((p < 0) | (p > 1)).any()):
        raise RuntimeError("bernoulli needs chances between 0 and 1")
    dtype = p.dtype if p.is_floating_point() else torch.float32
    return (draws.draw("uniform", 0.0, 1.0, like.shape, dtype, like.device) < p).to(like.dtype)


def _normal(draws: Draws, given: Given) -> torch.Tensor:
    """Tensor.normal_, and torch.normal with numbers or tensors."""
    mean: Any = given["mean"]
    std: Any = given["std"]
    if "self" in given or "size" in given:
        return draws.draw("normal", float(mean), float(std), *_form(given, torch.get_default_dtype()))
    like = mean if isinstance(mean, torch.Tensor) else std
    sizes = torch.broadcast_tensors(*(t for t in (mean, std) if isinstance(t, torch.Tensor)))[0].shape  # type: ignore[no-untyped-call]
    found: torch.Tensor = draws.draw("normal", 0.0, 1.0, sizes, like.dtype, like.device) * std + mean
    return found


def _dropout(draws: Draws, given: Given) -> Any:
    x, p = given["input"], given["p"]
    if given["train"] is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1 or not x.numel():
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    mask = draws.draw("bernoulli", 1 - p, 0.0, x.shape, torch.bool, x.device)
    return (x * mask).mul_(1 / (1 - p)), mask


def _rrelu(draws: Draws, given: Given) -> Any:
    x, noise = given["self"], given["noise"]
    slope = draws.draw("uniform", float(given["lower"]), float(given["upper"]), x.shape, x.dtype, x.device)
    slope = torch.where(x <= 0, slope, torch.ones_like(slope))
    noise.copy_(slope)
    return x * slope


def _multinomial(draws: Draws, given: Given) -> Any:
    """Exponential race: each outcome gets a random time at its weight's rate, and the first ones are drawn."""
    weights, count = given["self"], given["num_samples"]
    if given["replacement"]:
        sizes = [*weights.shape[:-1], count, weights.shape[-1]]
        waits = draws.draw("exponential", 1.0, 0.0, sizes, weights.dtype, weights.device)
        return (weights.unsqueeze(-2) / waits).argmax(-1)
    waits = draws.draw("exponential", 1.0, 0.0, weights.shape, weights.dtype, weights.device)
    return (weights / waits).topk(count).indices


def _permutation(draws: Draws, given: Given) -> torch.Tensor:
    device = torch.device(given.get("device") or "cpu")
    order = draws.draw("integers", 0, 1 << 53, [given["n"]], torch.int64, device)
    wanted = given.get("dtype")
    return order.argsort(stable=True).to(wanted if isinstance(wanted, torch.dtype) else torch.int64)


def _in_place(draw: Callable[[Draws, Given], torch.Tensor]) -> Callable[[Draws, Given], torch.Tensor]:
    return lambda draws, given: given["self"].copy_(draw(draws, given))


FILLING: dict[str, Callable[[Draws, Given], torch.Tensor]] = {
    "uniform": _filling("uniform", "from", "to"),
    "log_normal": _filling("log_normal", "mean", "std"),
    "exponential": _filling("exponential", "lambd"),
    "geometric": _filling("geometric", "p"),
    "cauchy": _filling("cauchy", "median", "sigma"),
    "bernoulli": _bernoulli,
    "random": _random,
    "normal": _normal,
}
DRAWN: dict[str, Callable[[Draws, Given], Any]] = {
    **FILLING,
    **{f"{name}_": _in_place(draw) for name, draw in FILLING.items()},
    **dict.fromkeys(("rand", "rand_like"), _new("uniform", 0.0, 1.0)),
    **dict.fromkeys(("randn", "randn_like"), _new("normal", 0.0, 1.0)),
    **dict.fromkeys(("randint", "randint_like"), _integers),
    "normal_functional": _normal,
    "native_dropout": _dropout,
    "rrelu_with_noise": _rrelu,
    "rrelu_with_noise_": lambda draws, given: given["self"].copy_(_rrelu(draws, given)),
    "multinomial": _multinomial,
    "randperm": _permutation,
}
