"""Runs any optimizer of torch on a rank's tensors: whole weights, parts of weights, or under ZeRO some elements of a
part.

Whether it takes the same steps there as on one device is found out before (`check_optimizer.py`).
"""

import ast
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..errors import EngineError
from ..link.host import HostLink, to_host
from ..program.initial_state import InitialState
from ..step.flat_params import FlatWeights
from ..step.parts import LocalTensor
from .check_optimizer import (
    NEEDS,
    Groups,
    Make,
    called,
    check_form,
    check_reach,
    check_sparse,
    check_used,
    group_of,
    some_of,
)
from .joined import JoinedOptimizers

CLASS = "class"  # the option of a group with an optimizer of its own


def optimizers() -> dict[str, Make]:
    """The optimizers of torch.optim by their names in lower case."""
    kinds = [v for v in vars(torch.optim).values() if isinstance(v, type) and issubclass(v, torch.optim.Optimizer)]
    return {kind.__name__.lower(): kind for kind in kinds if kind is not torch.optim.Optimizer}


def asked_optimizer(text: str) -> tuple[str, Make, dict[str, Any]]:
    """The name in lower case, the class and the options of an optimizer of torch.optim, as a command line gives them.

    Raises ValueError with the reason where torch has none such, or does not take the options.

    >>> name, make, options = asked_optimizer("AdamW,weight_decay=0.1,betas=(0.9,0.95)")
    >>> name, make.__name__, options
    ('adamw', 'AdamW', {'weight_decay': 0.1, 'betas': (0.9, 0.95)})
    """
    name, _, rest = text.partition(",")
    if (make := optimizers().get(name.lower())) is None:
        raise ValueError(f"there is no optimizer `{name}`: torch.optim has {', '.join(optimizers())}")
    try:
        call = ast.parse(f"{name}({rest})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError(rest)
        options = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (SyntaxError, ValueError):
        raise ValueError(f"`{rest}` is not NAME=VALUE,..., as in adamw,weight_decay=0.1,betas=(0.9,0.95)") from None
    if "lr" in options:
        raise ValueError("give the learning rate by --lr")
    try:
        make([torch.nn.Parameter(torch.zeros(2, 2))], **options)
    except Exception as error:
        raise ValueError(f"{make.__name__} does not take `{rest}`: {error}") from None
    return name.lower(), make, options


def own_options(name: str, *, are_real: bool) -> dict[str, Any]:
    """The options with which a program makes one of these, beside the user's: AdamW is one kernel, which torch has for
    weights of real numbers only."""
    return {"fused": True} if name.lower() == "adamw" and are_real else {}


@dataclass(eq=False)
class OptimizedParam:
    """A tensor that the optimizer updates, and the weight that it belongs to.

    `parameter` shares the memory of the trained tensor; for a weight in half precision it is a float32 copy, the master
    weight (Micikevicius et al. 2018), and for one whose optimizer's state is on the host a copy there.
    """

    held: LocalTensor
    flat: FlatWeights
    parameter: torch.nn.Parameter
    on_host: bool = False

    @property
    def name(self) -> str:
        """The weight's name."""
        return self.held.name

    @property
    def is_copy(self) -> bool:
        """Whether the parameter is a copy of the trained tensor, in another type or on the host."""
        return self.parameter.untyped_storage().data_ptr() != self.held.tensor.untyped_storage().data_ptr()

    @torch.no_grad()
    def give_back(self) -> None:
        """Copies the copy's value to the trained tensor."""
        if self.is_copy:
            with HostLink(self.held.tensor.nbytes if self.on_host else 0):
                self.held.tensor.copy_(self.parameter, non_blocking=True)


def stepped(
    flats: Iterable[FlatWeights],
    held: Sequence[LocalTensor],
    masters: InitialState | None,
    away: Collection[str] = (),
    on_host: Collection[str] = (),
) -> list[OptimizedParam]:
    """The tensors that the optimizer updates, in the order of `held`; `masters` has initial values of the float32
    copies.

    Without `masters` the optimizer updates the trained tensors themselves, or copies of those weights that are
    `on_host`. The weights that are `away` are updated elsewhere, and have no copy here.
    """
    flat_of = {name: flat for flat in flats for name in flat.stepped()}
    trained = [one for one in held if one.name in flat_of]
    start = (begun(one, masters, on_host) if one.name not in away else one.tensor for one in trained)
    return [
        OptimizedParam(one, flat_of[one.name], torch.nn.Parameter(x), one.name in on_host)
        for one, x in zip(trained, start, strict=True)
    ]


def begun(held: LocalTensor, masters: InitialState | None, on_host: Collection[str] = ()) -> torch.Tensor:
    """The tensor that the optimizer updates, of what is held of a weight: with `masters`, its float32 copy; of one of
    the weights `on_host`, a copy there."""
    where = torch.device("cpu") if held.name in on_host else held.tensor.device
    if masters is None or held.tensor.is_complex():  # complex weights have no half precision
        return to_host(held.tensor) if held.name in on_host else held.tensor
    piece = masters.part(held.piece, where).to(torch.float32, copy=True)
    piece = piece if held.span is None else piece.flatten()[slice(*held.span)].clone()
    return to_host(piece) if held.name in on_host else piece


class _Kind(NamedTuple):
    """The class of a group's optimizer, with its options, and those of the group. `is_own`: the group names it."""

    make: Make
    options: Mapping[str, Any]
    group: Mapping[str, Any]
    is_own: bool = False


@dataclass(frozen=True)
class OptimizerRecipe:
    """What an optimizer was made of, but for the weights."""

    make: Make
    names: Mapping[str, Sequence[str]]
    groups: Groups | None
    options: Mapping[str, Any]
    sparse: Sequence[str]


class Optimizer:
    """This rank's optimizer, with the same number of parameter groups on each rank: one per entry of `groups`, then the
    rest.

    A key of `groups` has patterns of names (`"*.bias|*norm*"`); a weight belongs to the first that matches one of its
    names. `names` has all names of each weight that the optimizer steps on, on any rank, by the first; `sparse` are
    those trained weights whose gradients are sparse on one device; `by_matrix` is the line of a plan with which the
    optimizer gets whole weights. A group with a `"class"` has an optimizer of its own, with the group's options alone.
    Raises EngineError for a pattern that matches none; for an optimizer that cannot step on the parts of weights or on
    the weights that this rank has, takes no sparse gradients, or does not take the options.
    """

    def __init__(
        self,
        make: Make,
        weights: Sequence[OptimizedParam],
        names: Mapping[str, Sequence[str]],
        groups: Groups | None,
        options: Mapping[str, Any],
        sparse: Sequence[str] = (),
        by_matrix: str = "",
    ) -> None:
        self.made = OptimizerRecipe(make, names, groups, options, sparse)
        groups = groups or {}
        check_form(make, groups)
        self.weights, self.keys = [w for w in weights if w.name in names], [*groups, None]
        self.chosen = {name: group_of(known, groups) for name, known in names.items()}
        for key in groups:
            check_used(key, self.chosen, names)
        for used in dict.fromkeys(self.chosen.values()):
            mine = [w.held for w in self.weights if self.chosen[w.name] == used]
            kind = self._kind(used)
            check_reach(kind.make, mine, self._elsewhere(used), kind.options, kind.group, by_matrix)
        for name in (name for name in sparse if name in names):
            kind = self._kind(self.chosen[name])
            check_sparse(kind.make, name, {**kind.options, **kind.group})
        self.torch = self._joined()
        self.torch.add_param_group = _refuse_group  # type: ignore[assignment, method-assign]

    def _kind(self, key: str | None) -> "_Kind":
        """The class and the options of a group."""
        group = dict((self.made.groups or {}).get(key or "", {}))
        own = group.pop(CLASS, None)
        return _Kind(self.made.make, self.made.options, group) if own is None else _Kind(own, group, {}, is_own=True)

    def _joined(self) -> torch.optim.Optimizer:
        """The optimizer of torch; of several classes, one that steps with all of them."""
        kinds = {key: self._kind(key) for key in self.keys}
        main = [key for key, kind in kinds.items() if not kind.is_own]
        groups: dict[str | None, dict[str, Any]] = {}
        optimizers = []
        for keys in (main, *([key] for key, kind in kinds.items() if kind.is_own)):
            kind = kinds[keys[0]]
            try:
                made = kind.make([self._group(key, kinds[key].group) for key in keys], **kind.options)
            except Exception as error:  # such as Muon for a bias
                raise EngineError(f"{called(kind.make)} does not take these weights: {error}", NEEDS) from error
            groups |= zip(keys, made.param_groups, strict=True)
            optimizers.append(made)
        if len(optimizers) == 1:
            return optimizers[0]
        return JoinedOptimizers(optimizers, [groups[key] for key in self.keys])

    def _elsewhere(self, key: str | None) -> str | None:
        """The first weight of a group that only other ranks hold, if this rank holds any."""
        held = {w.name for w in self.weights}
        names = (name for name, chosen in self.chosen.items() if chosen == key and name not in held)
        return next(names, None) if held else None

    def _group(self, key: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
        return {"params": [w.parameter for w in self.weights if self.chosen[w.name] == key], **options}

    def state(self, weight: OptimizedParam) -> dict[str, Any]:
        """The optimizer's state of a weight, such as its moments; empty before its first step."""
        found: dict[str, Any] = self.torch.state.get(weight.parameter, {})
        return found

    def options(self) -> str:
        """The plain options of each parameter group, to compare them between ranks."""
        plain = int, float, str, tuple, torch.Tensor, type(None)
        groups = self.torch.param_groups
        return str([{n: v for n, v in g.items() if n != "params" and isinstance(v, plain)} for g in groups])

    def group(self, name: str) -> int:
        """The number of a weight's parameter group."""
        return self.keys.index(self.chosen[name])


class Optimizers(list[Optimizer]):
    """An engine's optimizers, in the order in which they were made; each steps on weights of its own."""

    def add(self, made: Optimizer) -> None:
        """Adds an optimizer; one on the same weights is replaced. Raises EngineError if an earlier one has some of its
        weights."""
        for number, other in enumerate(self):
            if other.chosen.keys() == made.chosen.keys():
                self[number] = made
                return
            if shared := [name for name in made.chosen if name in other.chosen]:
                raise EngineError(
                    f"`{shared[0]}` would be a weight of two optimizers",
                    'name the weights of each: `engine.optimizer(..., weights="critic.*")`',
                )
        self.append(made)

    def only(self) -> Optimizer:
        """The optimizer. Raises EngineError if there is none, or more than one."""
        if not self:
            raise EngineError("the engine has no optimizer", "make one: `engine.optimizer(torch.optim.AdamW, lr=1e-3)`")
        if len(self) > 1:
            change = "name those that step: `engine.step(batch, optimizer=...)`, as `engine.optimizer` returned them"
            raise EngineError(f"the engine has {len(self)} optimizers", change)
        return self[0]

    def asked(self, asked: Any) -> list[Optimizer]:
        """The optimizers of a step: the one that there is, or those that are asked for. Raises EngineError."""
        if asked is None:
            return [self.only()]
        found = []
        for one in asked if isinstance(asked, list | tuple) else [asked]:
            mine = next((o for o in self if o.torch is one), None)
            if mine is None:
                change = "give one that `engine.optimizer` returned, or a list of such"
                raise EngineError(f"optimizer={one!r} is none of the engine's", change)
            found.append(mine)
        return found


def chosen_weights(names: Mapping[str, Sequence[str]], patterns: str | None) -> Mapping[str, Sequence[str]]:
    """The weights with a name that one of the patterns fits (`"critic.*|*.head.*"`); all, if there are no patterns.

    Raises EngineError if none does.

    >>> chosen_weights({"a.weight": ["a.weight"], "b.weight": ["b.weight", "tied"]}, "t*")
    {'b.weight': ['b.weight', 'tied']}
    """
    if patterns is None:
        return names
    if not isinstance(patterns, str):
        raise EngineError(f"`weights` is {patterns!r}", 'give patterns of names, such as weights="critic.*|*.head.*"')
    found = {name: known for name, known in names.items() if group_of(known, {patterns: {}}) is not None}
    if not found:
        raise EngineError(f"`{patterns}`: no trained weight has such a name", f"they are {some_of(list(names))}")
    return found


def _refuse_group(group: Any) -> None:
    raise EngineError(
        "parameter groups are not added to an optimizer of an engine, whose weights are known when it is made",
        "name all groups when it is made: `engine.optimizer(..., groups={...})`",
    )
