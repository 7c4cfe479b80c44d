"""Recipes of initial weights: the operators of a model's constructor, which can run for one weight or a part of it.

The steps are in `weights.json` beside the program. A rank's part equals that of one device, because each random number
is a function of the seed and of the element's position.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Any

import torch

from ..layout.cut import elements_at
from ..random.counter_rng import Generator
from ..random.single_device import Draws

CPU = torch.device("cpu")
INITIAL = -1  # the number of the step whose random numbers initialise weights

# Elementwise operators, which make or change a tensor number by number. On a part they give that part of the result.
FACTORIES = {f"aten::{name}" for name in ("empty.memory_format", "zeros", "ones", "full", "randn", "rand")}
POINTWISE = FACTORIES | {
    f"aten::{name}"
    for name in (
        *("zero_", "fill_.Scalar", "normal_", "uniform_", "_to_copy", "clamp_", "clamp_min_", "clamp_max_", "neg_"),
        *("mul_.Tensor", "mul_.Scalar", "add_.Tensor", "add_.Scalar", "sub_.Tensor", "div_.Tensor", "pow_.Scalar"),
        *("erfinv_", "exp_", "log_", "sqrt_", "tanh_", "abs_", "sign_"),
    )
}


@dataclass(frozen=True, slots=True)
class TensorView:
    """A tensor as a view of a memory; sizes, strides and offset in elements. Memories are numbered."""

    memory: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @property
    def is_whole(self) -> bool:
        """Whether it begins at its memory's start and is contiguous."""
        return self.offset == 0 and torch.empty_strided(self.size, self.stride, device="meta").is_contiguous()


@dataclass(frozen=True, slots=True)
class RecipeStep:
    """A call of an operator by its full name. Tensor arguments are `TensorView`s, dtypes are texts ("torch.float32").

    `makes` are the memories of its new results, `writes` those that it changes in place. `draw` is the number of its
    first random draw within the constructor, or -1.
    """

    target: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    makes: tuple[int, ...]
    writes: tuple[int, ...]
    draw: int

    @property
    def views(self) -> list[TensorView]:
        """The tensor arguments."""
        return _views([self.args, list(self.kwargs.values())])


def _views(item: Any) -> list[TensorView]:
    if isinstance(item, TensorView):
        return [item]
    return [v for i in item for v in _views(i)] if isinstance(item, (tuple, list)) else []


@dataclass(frozen=True)
class Recipes:
    """Recipes of weights and buffers: the steps of a constructor, and the view of each weight after them.

    `given` are memories that no step makes.
    """

    steps: Sequence[RecipeStep]
    weights: Mapping[str, TensorView]
    given: Mapping[int, torch.Tensor]
    seed: int
    generator: Generator

    def whole(self, name: str, device: torch.device = CPU) -> torch.Tensor:
        """A whole weight. Elementwise operators run on the device, others on the CPU, where their results are known to
        be those of the constructor."""
        view = self.weights[name]
        steps = self._steps_of(needed := {view.memory})
        on = device if all(step.target in POINTWISE for step in steps) else CPU
        memories = {n: t.to(on, copy=True) for n, t in self.given.items() if n in needed}
        for step in steps:
            _follow(step, memories, self, on)
        return _seen(view, memories).to(device, copy=True)

    def part(self, name: str, places: Sequence[torch.Tensor], device: torch.device = CPU) -> torch.Tensor:
        """The part of a weight at these positions of its axes; only that part is computed where each step allows it."""
        view = self.weights[name]
        steps = self._steps_of({view.memory})
        if all(n == len(p) for n, p in zip(view.size, places, strict=True)) or not _is_pointwise(view, steps):
            whole = self.whole(name, device)
            return whole[elements_at(places)]
        part = torch.empty(0)
        for step in steps:
            first = [len(p) for p in places] if step.target in FACTORIES else part
            with self._draws(step, places, view.size):
                part = _call(step, [first, *step.args[1:]], {}, device)
        return part

    def is_undefined(self, name: str) -> bool:
        """Whether a weight is uninitialised memory."""
        steps = self._steps_of({self.weights[name].memory})
        return bool(steps) and all(s.target.startswith("aten::empty") for s in steps)

    def without_waste(self) -> "Recipes":
        """Recipes without the steps that no weight needs."""
        needed = {id(s) for s in self._steps_of({v.memory for v in self.weights.values()})}
        return replace(self, steps=[s for s in self.steps if id(s) in needed])

    def _steps_of(self, memories: set[int]) -> list[RecipeStep]:
        """The steps that make these memories, in order; adds the memories that these steps read."""
        asked = {n for memory in memories for n in self._writers.get(memory, ())}
        waiting, found = [-n for n in asked], []  # a heap, the last step first
        heapify(waiting)
        while waiting:
            last = -heappop(waiting)
            found.append(step := self.steps[last])
            for memory in {v.memory for v in step.views} - memories:
                memories.add(memory)
                earlier = {n for n in self._writers.get(memory, ()) if n < last} - asked
                asked |= earlier
                for n in earlier:
                    heappush(waiting, -n)
        return found[::-1]

    @cached_property
    def _writers(self) -> dict[int, list[int]]:
        """The numbers of the steps that make or change each memory."""
        found: dict[int, list[int]] = {}
        for n, step in enumerate(self.steps):
            for memory in {*step.makes, *step.writes}:
                found.setdefault(memory, []).append(n)
        return found

    def _draws(self, step: RecipeStep, places: Sequence[torch.Tensor] = (), sizes: Sequence[int] = ()) -> Any:
        """The source of a step's random numbers."""
        if step.draw < 0:
            return nullcontext()
        return _PartDraws(self, step.draw, places, sizes)


class _PartDraws(Draws):  # type: ignore[no-untyped-call]
    """Random draws from a number on; with `places`, only the parts of tensors of these `sizes`."""

    def __init__(
        self, recipes: Recipes, first: int, places: Sequence[torch.Tensor] = (), sizes: Sequence[int] = ()
    ) -> None:
        super().__init__(recipes.seed, INITIAL, recipes.generator)
        self.count, self.places, self.sizes = first, places, sizes

    def index(self, sizes: Sequence[int], device: torch.device) -> tuple[Sequence[torch.Tensor], Sequence[int]]:
        return ([p.to(device) for p in self.places], self.sizes) if self.places else super().index(sizes, device)


def _is_pointwise(view: TensorView, steps: Sequence[RecipeStep]) -> bool:
    """Whether the steps compute one tensor elementwise from nothing else."""
    starts_new = bool(steps) and steps[0].target in FACTORIES
    return (
        starts_new
        and view.is_whole
        and all(
            step.target in POINTWISE
            and all(v.is_whole and v.size == view.size for v in step.views)
            and len(step.views) < 2
            for step in steps
        )
    )


def _follow(step: RecipeStep, memories: dict[int, torch.Tensor], recipes: Recipes, device: torch.device) -> None:
    """Runs a step on whole tensors; `memories` has a tensor for each memory."""
    with recipes._draws(step):
        result = _call(step, step.args, memories, device)
    results = [result] if isinstance(result, torch.Tensor) else list(result or ())
    if step.makes:
        memories.update(zip(step.makes, (r for r in results if isinstance(r, torch.Tensor)), strict=True))


def _call(step: RecipeStep, args: Sequence[Any], memories: Mapping[int, torch.Tensor], device: torch.device) -> Any:
    """The result of a step's operator; new tensors lie on the device."""
    operator = operator_named(step.target)
    kwargs = {k: _value(v, memories) for k, v in step.kwargs.items()}
    if any(argument.name == "device" for argument in operator._schema.arguments):
        kwargs["device"] = device
    return operator(*[_value(a, memories) for a in args], **kwargs)


def _seen(view: TensorView, memories: Mapping[int, torch.Tensor]) -> torch.Tensor:
    return memories[view.memory].as_strided(view.size, view.stride, view.offset)


def operator_named(name: str) -> Any:
    """torch's object of an operator by its full name, `aten::max.dim`; None where there is none."""
    namespace, _, rest = name.partition("::")
    kind, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), kind, None), overload or "default", None)


def _value(item: Any, memories: Mapping[int, torch.Tensor]) -> Any:
    """An argument in the form that torch takes."""
    match item:
        case TensorView():
            return _seen(item, memories)
        case str() if item.startswith("torch."):
            return getattr(torch, item.removeprefix("torch."))
        case tuple() | list():
            return [_value(i, memories) for i in item]
    return item


# -- in a file ---------------------------------------------------------------------------------------------------------


def write_recipes(recipes: Recipes, path: Path) -> None:
    """Writes recipes as JSON, a line per step and per weight, and the given memories as tensors beside it."""
    encoded = json.JSONEncoder(default=_view_json, check_circular=False).encode
    steps = ",\n".join(
        [f"  {encoded([s.target, s.args, dict(s.kwargs), s.makes, s.writes, s.draw])}" for s in recipes.steps]
    )
    weights = ",\n".join([f"  {encoded(name)}: {encoded(view)}" for name, view in recipes.weights.items()])
    head = f'"seed": {recipes.seed}, "generator": {json.dumps(recipes.generator)}'
    path.write_text(f'{{{head},\n"steps": [\n{steps}\n],\n"weights": {{\n{weights}\n}}}}\n')
    if recipes.given:
        torch.save(dict(recipes.given), path.with_suffix(".given.pt"))


def read_recipes(path: Path) -> Recipes:
    """Reads what `write_recipes` wrote. Raises OSError."""
    table, given = json.loads(path.read_text(), object_hook=_from_json), path.with_suffix(".given.pt")
    steps = [
        RecipeStep(target, tuple(args), kwargs, tuple(makes), tuple(writes), draw)
        for target, args, kwargs, makes, writes, draw in table["steps"]
    ]
    memories = torch.load(given, mmap=True, weights_only=True) if given.exists() else {}
    return Recipes(steps, table["weights"], memories, table["seed"], table["generator"])


def _view_json(view: TensorView) -> dict[str, Any]:
    return {"view": [view.memory, view.size, view.stride, view.offset]}


def _from_json(item: dict[str, Any]) -> Any:
    match item:
        case {"view": [memory, size, stride, offset]}:
            return TensorView(memory, tuple(size), tuple(stride), offset)
        case {"float": str(text)}:  # the form in which infinities and NaN were written
            return float(text)
    return item
