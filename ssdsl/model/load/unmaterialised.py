"""Constructs a module without its numbers: operators on large tensors are recorded, not run.

So a model that is too large for one process is constructed in seconds, and each of its weights has a recipe: the
operators that make it. A rank runs them for its weights, and parts of weights. During construction a large tensor is
*hollow*: an ordinary CPU tensor whose memory is never touched. Small tensors are real, so that a constructor can
compute with their numbers, as `torch.linspace(0, 0.1, layers).tolist()` does.
"""

import copy
import itertools
import math
import mmap
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from ssdsl.identity import ByIdentity
from ssdsl.model.capture.preserve import patched
from ssdsl.model.observe.call import memory_of
from ssdsl.runtime.program.recipes import INITIAL, Recipes, RecipeStep, TensorView
from ssdsl.runtime.random.counter_rng import Generator
from ssdsl.runtime.random.single_device import Draws

LARGE = 1 << 14  # elements; smaller tensors are real
HUGE = 1 << 30  # bytes; larger hollow tensors get no reserved memory
NORESERVE = 0x4000  # Linux's MAP_NORESERVE, which Python's mmap does not name
REGISTERED = {"_parameters", "_buffers", "_modules"}  # attributes of a module that are no plain ones
DROPPED = ("device", "pin_memory", "layout", "memory_format")  # arguments on which no number depends


class ReadsNumbers(Exception):
    """A constructor asked for a number of a tensor that has none; the text names the operator."""


class TooMany(BaseException):
    """A constructor makes more numbers than wanted. It is no Exception, so that a user's code does not handle it."""


class Fewer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that raises TooMany when more than `most` numbers are made from no tensor, as constructors do. It is
    entered after `initial_draws`: so it sees a draw, and not the operators by which the numbers are made."""

    def __init__(self, most: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most = most
        self.made = 0

    def __torch_dispatch__(self, target: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._makes_numbers(target, args, kwargs):
            self.made += sum(t.numel() for t in _on_meta(target, args, kwargs))
            if self.made > self.most:
                raise TooMany
        return target(*args, **kwargs)

    @staticmethod
    def _makes_numbers(target: Any, args: Any, kwargs: Any) -> bool:
        given = _reads_tensors(target) or bool(tensors_in((args, kwargs)))
        return not given and kwargs.get("generator") is None and str(kwargs.get("device")) != "meta"


class Deferred:
    """A context in which constructors make large tensors without numbers.

    >>> with Deferred(seed=0) as deferred:
    ...     layer = torch.nn.Linear(1000, 1000)
    >>> module, recipes = deferred.finish(layer)
    >>> module.weight.is_meta, recipes.whole("weight").shape
    (True, torch.Size([1000, 1000]))
    """

    def __init__(self, seed: int, generator: Generator = "hash") -> None:
        self._scope = ExitStack()
        self._seed, self._generator = seed, generator

    def __enter__(self) -> "Deferred":
        draws = self._scope.enter_context(initial_draws(self._seed, self._generator))
        self._recorder = self._scope.enter_context(_Recorder(draws))
        return self

    def __exit__(self, *error: Any) -> None:
        self._scope.__exit__(*error)

    def finish(self, module: torch.nn.Module) -> tuple[torch.nn.Module, Recipes]:
        """The module on the meta device, and the recipes of its weights and buffers."""
        self._make_attributes(module)
        recipes = self._recipes(named_tensors(module))
        return with_tensors(module, lambda _, tensor: torch.empty_like(tensor, device="meta")), recipes

    def _make_attributes(self, module: torch.nn.Module) -> None:
        """Makes the numbers of tensors in plain attributes: a capture keeps these as constants."""
        registered = {id(t) for t in named_tensors(module).values()}

        def real(tensor: torch.Tensor) -> torch.Tensor:
            hollow = self._recorder.is_hollow(tensor) and id(tensor) not in registered
            return self.made({"it": tensor})["it"] if hollow else tensor

        change_attributes(module, real)

    def made(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The numbers of tensors that were made within it."""
        recipes = self._recipes(tensors)
        return {name: recipes.whole(name) for name in tensors}

    def _recipes(self, tensors: Mapping[str, torch.Tensor]) -> Recipes:
        recorder = self._recorder
        views = {name: recorder.view(tensor.detach()) for name, tensor in tensors.items()}
        return Recipes(recorder.steps, views, recorder.given, self._seed, self._generator).without_waste()


def made(
    make: Callable[[], torch.nn.Module], dtype: torch.dtype, seed: int, generator: Generator, meta: bool
) -> tuple[torch.nn.Module, Recipes | None]:
    """A module in training mode, its weights drawn by the seed; or on the meta device, with the recipes of its weights.

    The caller's random state is left as it was.
    """
    with (scope := Deferred(seed, generator) if meta else initial_draws(seed, generator)):
        module = make().to(dtype).train()
    return scope.finish(module) if isinstance(scope, Deferred) else (module, None)


@cache
def _reads_tensors(target: Any) -> bool:
    """Whether each call of an operator has a tensor among its arguments."""
    return any(str(p.type) == "Tensor" and not p.has_default_value() for p in target._schema.arguments)


def tensors_in(item: Any) -> list[torch.Tensor]:
    """All tensors in arguments or results, which may be in lists, tuples and dictionaries."""
    return [leaf for leaf in tree_leaves(item) if isinstance(leaf, torch.Tensor)]


def named_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Weights and buffers by all of their names."""
    weights, buffers = module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)
    return {**dict(weights), **dict(buffers)}


def first_names(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """For each name, the first name of the same tensor: another one for tied weights."""
    firsts = ByIdentity[torch.Tensor, str]()
    return {name: firsts.setdefault(tensor, name) for name, tensor in tensors.items()}


@contextmanager
def initial_draws(seed: int, generator: Generator = "hash") -> Iterator[Draws]:
    """A context in which constructors draw the same numbers as recipes.

    PyTorch draws a truncated normal distribution again and again until all numbers are inside; here each number is
    drawn once, by the inverse of the distribution function.
    """
    once = patched(torch.nn.init, "_no_grad_trunc_normal_", _truncated_normal)
    with once, torch.random.fork_rng(devices=[]), Draws(seed, INITIAL, generator) as draws:
        torch.manual_seed(seed)  # for draws that are no operators of torch
        yield draws


def _truncated_normal(
    tensor: torch.Tensor, mean: float, std: float, a: float, b: float, generator: torch.Generator | None = None
) -> torch.Tensor:
    """`torch.nn.init.trunc_normal_` with one draw per number.

    `low` and `high` are 2 F - 1 at both bounds, where F is the normal distribution function; `erfinv` inverts this.
    """
    low, high = (math.erf((bound - mean) / (std * math.sqrt(2))) for bound in (a, b))
    with torch.no_grad():
        tensor.uniform_(low, high, generator=generator).erfinv_().mul_(std * math.sqrt(2)).add_(mean)
        return tensor.clamp_(a, b)


def with_numbers(module: torch.nn.Module, recipes: Recipes) -> torch.nn.Module:
    """A copy of a module on the meta device, its weights and buffers made by their recipes."""
    return with_tensors(copy.deepcopy(module), lambda name, _: recipes.whole(name))


def with_tensors(module: torch.nn.Module, make: Callable[[str, torch.Tensor], torch.Tensor]) -> torch.nn.Module:
    """Replaces each weight and buffer by `make(name, tensor)`; names that shared a tensor share the new one."""
    found = ByIdentity[torch.Tensor, torch.Tensor]()
    for path, owner in module.named_modules():
        for tensors in (owner._parameters, owner._buffers):
            for name, tensor in tensors.items():
                if tensor is None:
                    continue
                if tensor not in found:
                    found[tensor] = _like(tensor, make(f"{path}.{name}".lstrip("."), tensor))
                tensors[name] = found[tensor]
    return module


def change_attributes(module: torch.nn.Module, make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Replaces each tensor in plain attributes by `make(tensor)`; an attribute without a new one is not changed."""
    for one in module.modules():
        for name, value in list(vars(one).items()):
            if name not in REGISTERED and tensors_in(value):
                changed = tree_map_only(torch.Tensor, make, value)
                if any(a is not b for a, b in zip(tree_leaves(value), tree_leaves(changed), strict=True)):
                    vars(one)[name] = changed


def _like(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """The new tensor, as a Parameter if the old one was one, with the Python attributes of the old one."""
    if isinstance(old, torch.nn.Parameter):
        new = torch.nn.Parameter(new, old.requires_grad)
    vars(new).update(vars(old))
    return new


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every operator that makes or changes a tensor, and runs those whose tensors are all small."""

    def __init__(self, draws: Draws) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.draws = draws
        self.steps: list[RecipeStep] = []
        self.given: dict[int, torch.Tensor] = {}
        self._memories: dict[int, int] = {}  # the number of a memory by its identity
        self._numbers = itertools.count()
        self._hollow: set[int] = set()
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, target: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _is_view(target):
            return target(*args, **kwargs)
        tensors = tensors_in((args, kwargs))
        written = (self._recorded(args), {k: self._recorded(v) for k, v in kwargs.items() if k not in DROPPED})
        draw = self.draws.count
        if kwargs.get("generator") is not None:  # the user's own generator: its draws are given, no steps
            self._need_numbers(target, tensors)
            for tensor in _changed(target, args, kwargs):  # no step makes these numbers: the memory gets a new number
                self._memories.pop(memory_of(tensor), None)
            return target(*args, **kwargs)
        if self._is_hollow(target, tensors, args, kwargs):
            result = self._pretended(target, args, kwargs)
            self.draws.skip(target)
        else:
            result = target(*args, **kwargs)
        made = tensors_in(result)
        known = {memory_of(t) for t in tensors}
        makes = tuple(self._number(t) for t in made if memory_of(t) not in known)
        writes = tuple(self._number(t) for t in _changed(target, args, kwargs))
        self.steps.append(RecipeStep(target.name(), *written, makes, writes, draw if self.draws.count > draw else -1))
        return result

    def _need_numbers(self, target: Any, tensors: Sequence[torch.Tensor]) -> None:
        if any(memory_of(t) in self._hollow for t in tensors):
            raise ReadsNumbers(str(target))

    def view(self, tensor: torch.Tensor) -> TensorView:
        """The place of a tensor in a recorded memory; a memory that no step made becomes `given`, with its numbers."""
        if memory_of(tensor) not in self._memories:
            flat = tensor.new_empty(0).set_(tensor.untyped_storage()).clone()
            self.given[self._number(tensor)] = flat
        number = self._memories[memory_of(tensor)]
        return TensorView(number, tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))

    def is_hollow(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has no numbers."""
        return memory_of(tensor) in self._hollow

    def _number(self, tensor: torch.Tensor) -> int:
        if memory_of(tensor) not in self._memories:
            self._memories[memory_of(tensor)] = next(self._numbers)
            self._follow(tensor)
        return self._memories[memory_of(tensor)]

    def _follow(self, tensor: torch.Tensor) -> None:
        """Forgets a memory when it is freed, because its address may be used again."""
        memory = memory_of(tensor)

        def freed(_: object) -> None:
            self._memories.pop(memory, None)
            self._hollow.discard(memory)
            del self._alive[memory]

        self._alive[memory] = weakref.ref(tensor.untyped_storage(), freed)

    def _recorded(self, item: Any) -> Any:
        match item:
            case torch.Tensor():
                return self.view(item)
            case tuple() | list():
                return tuple(self._recorded(i) for i in item)
            case torch.dtype():
                return str(item)
            case torch.device() | torch.layout() | torch.memory_format():
                return None
        return item

    def _is_hollow(self, target: Any, tensors: Sequence[torch.Tensor], args: Any, kwargs: Any) -> bool:
        """Whether the results have no numbers: they follow from a tensor that has none, or are large themselves."""
        if any(memory_of(t) in self._hollow for t in tensors):
            return True
        return not tensors and any(t.numel() >= LARGE for t in _on_meta(target, args, kwargs))

    def _pretended(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The results of an operator that is not run, as hollow tensors."""
        if torch.Tag.data_dependent_output in target.tags or torch.Tag.dynamic_output_shape in target.tags:
            self._need_numbers(target, tensors_in((args, kwargs)))
        changed = _changed(target, args, kwargs)
        self._hollow |= {memory_of(t) for t in changed}
        if changed:
            return changed[0] if len(target._schema.returns) == 1 else tuple(changed)
        made = [_hollow(t) for t in _on_meta(target, args, kwargs)]
        self._hollow |= {memory_of(t) for t in made}
        for tensor in made:
            self._follow(tensor)
        return made[0] if len(target._schema.returns) == 1 and not _returns_list(target) else made


def _on_meta(target: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Tensors shaped like the results."""

    def meta(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")

    args, kwargs = tree_map_only(torch.Tensor, meta, (args, kwargs))
    if any(p.name == "device" for p in target._schema.arguments):
        kwargs = {**kwargs, "device": torch.device("meta")}
    with _disable_current_modes():  # nothing is drawn
        return tensors_in(target(*args, **kwargs))


def _hollow(like: torch.Tensor) -> torch.Tensor:
    """A CPU tensor with the shape of another, whose memory is never touched. For a huge one no memory is reserved: the
    system would refuse a tensor larger than all memory."""
    size = like.untyped_storage().nbytes()
    if size < HUGE or sys.platform != "linux":
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
    storage = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    return torch.empty(0, dtype=like.dtype).set_(storage, 0, like.shape, like.stride())


def _is_view(target: Any) -> bool:
    return any(r.alias_info is not None and not r.alias_info.is_write for r in target._schema.returns)


def _returns_list(target: Any) -> bool:
    return "List" in str(target._schema.returns[0].type)


def _changed(target: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The arguments that an operator changes in place."""
    named = {**kwargs, **dict(zip((p.name for p in target._schema.arguments), args, strict=False))}
    return [
        t
        for p in target._schema.arguments
        if p.alias_info is not None and p.alias_info.is_write
        for t in tensors_in(named.get(p.name))
    ]
