"""A mode under which PyTorch's random operators on a single device draw the numbers that a program's parts draw.

The draws of a step are numbered in the order in which they run, as a captured graph numbers its random operators. Each
draw takes its key by its number, and all positions of its tensor.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from ..ranks.control import bytes_of
from .counter_rng import Generator, step_keys
from .distributions import DISTRIBUTIONS
from .operators import RULES, Form, Given, Rule

FIRST_KEYS = 64  # keys that are made at the start; if a step draws more, their number is doubled


class CannotDraw(NotImplementedError):
    """A random operator whose numbers are not a function of their positions."""


class Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that replaces all random operators of one step, forward and backward.

    An activation checkpoint that recomputes in backward draws the same numbers again. Raises CannotDraw.
    """

    def __init__(self, seed: int, step: int, generator: Generator = "hash") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seed_and_step = torch.tensor([seed, step])
        self.generator: Generator = generator
        self.count = 0
        self.keys = step_keys(self.seed_and_step, FIRST_KEYS)
        # by the state of torch's generator, the number of the draw: a checkpoint resets that state, and so draws again
        self.numbers: dict[bytes, int] = {}
        self.attention = _MathAttention()

    @staticmethod
    def current() -> "Draws":
        """The innermost mode of this thread."""
        modes = (mode for mode in reversed(_get_current_dispatch_mode_stack()) if isinstance(mode, Draws))
        return next(modes)

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
        is_in_backward = torch._C._current_graph_task_id() >= 0
        is_recomputed = is_in_backward and state in self.numbers
        number = self.numbers[state] if is_recomputed else self.count
        self.numbers[state] = number
        self.count += not is_recomputed
        torch.rand(1)  # the next draw finds another state
        if number >= len(self.keys):
            self.keys = step_keys(self.seed_and_step, 2 * number)
        return self.keys[number].to(device)

    def draw(self, name: str, first: float, second: float, form: Form) -> torch.Tensor:
        """A tensor of random numbers from a distribution."""
        device = form.device
        if 0 in form.sizes:
            return torch.empty(*form.sizes, dtype=form.dtype, device=device)
        index, sizes = self.index(form.sizes, device)
        return DISTRIBUTIONS[name](first, second, self.key(device), index, sizes, self.generator, form.dtype)

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


def _dropout(draws: Draws, given: Given) -> Any:
    x, p = given["input"], given["p"]
    if given["train"] is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1 or not x.numel():
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    return RULES["native_dropout"](draws, given)


def _rrelu(draws: Draws, given: Given) -> Any:
    found, slopes = RULES["rrelu"](draws, given)
    given["noise"].copy_(slopes)
    return found


def _in_place(rule: Rule) -> Rule:
    return lambda draws, given: given["self"].copy_(rule(draws, given))


FUNCTIONAL: dict[str, Any] = {**RULES, "native_dropout": _dropout, "rrelu_with_noise": _rrelu}
DRAWN = {**FUNCTIONAL, **{f"{name}_": _in_place(rule) for name, rule in FUNCTIONAL.items()}}
