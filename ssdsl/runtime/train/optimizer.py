"""Runs any optimizer of torch on a rank's tensors: whole weights, parts of weights, or under ZeRO some elements of a
part.

An elementwise optimizer (Adam, SGD) gives the same numbers on parts as on whole weights. One that looks at a weight as
a whole (Adafactor, Muon) does not, and one that looks at all weights together (Prodigy, steps of a normalised gradient)
needs all of them on each rank. Trial steps on small tensors tell them apart.
"""

import ast
import reprlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any

import torch

from ..errors import EngineError
from ..program.initial_state import InitialState
from ..step.flat_params import FlatWeights
from ..step.parts import LocalTensor

Groups = Mapping[str, Mapping[str, Any]]
Make = type[torch.optim.Optimizer]
NEEDS = "see what this optimizer needs"
TRIAL_LR = 0.01


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
    weight (Micikevicius et al. 2018).
    """

    held: LocalTensor
    flat: FlatWeights
    parameter: torch.nn.Parameter

    @property
    def name(self) -> str:
        """The weight's name."""
        return self.held.name

    @property
    def is_master(self) -> bool:
        """Whether the parameter is a float32 master copy."""
        return self.parameter.dtype != self.held.tensor.dtype

    @torch.no_grad()
    def give_back(self) -> None:
        """Copies the master's value to the trained tensor."""
        if self.is_master:
            self.held.tensor.copy_(self.parameter)


def stepped(
    flats: Iterable[FlatWeights],
    held: Sequence[LocalTensor],
    masters: InitialState | None,
    away: Collection[str] = (),
) -> list[OptimizedParam]:
    """The tensors that the optimizer updates, in the order of `held`; `masters` has initial values of the float32
    copies.

    Without `masters` the optimizer updates the trained tensors themselves. The weights that are `away` are updated
    elsewhere, and have no copy here.
    """
    flat_of = {name: flat for flat in flats for name in flat.stepped()}
    trained = [one for one in held if one.name in flat_of]
    start = (begun(one, masters if one.name not in away else None) for one in trained)
    return [
        OptimizedParam(one, flat_of[one.name], torch.nn.Parameter(x)) for one, x in zip(trained, start, strict=True)
    ]


def begun(held: LocalTensor, masters: InitialState | None) -> torch.Tensor:
    """The tensor that the optimizer updates, of what is held of a weight: with `masters`, its float32 copy."""
    if masters is None or held.tensor.is_complex():  # complex weights have no half precision
        return held.tensor
    piece = masters.part(held.piece, held.tensor.device).to(torch.float32, copy=True)
    return piece if held.span is None else piece.flatten()[slice(*held.span)].clone()


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
    optimizer gets whole weights. Raises EngineError for a pattern that matches none;
    for an optimizer that cannot step on the parts of weights or on the weights that this rank has, takes no sparse
    gradients, or does not take the options.
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
        _check_form(make, groups)
        self.weights, self.keys = [w for w in weights if w.name in names], [*groups, None]
        self.chosen = {name: _group_of(known, groups) for name, known in names.items()}
        for key in groups:
            _check_used(key, self.chosen, names)
        for used in dict.fromkeys(self.chosen.values()):
            mine = [w for w in self.weights if self.chosen[w.name] == used]
            _check(make, mine, self._elsewhere(used), options, groups.get(used or "", {}), by_matrix)
        for name in (name for name in sparse if name in names):
            _check_sparse(make, name, {**options, **groups.get(self.chosen[name] or "", {})})
        try:
            self.torch = make([self._group(key, groups.get(key or "", {})) for key in self.keys], **options)
        except Exception as error:  # such as Muon for a bias
            raise EngineError(f"{_called(make)} does not take these weights: {error}", NEEDS) from error
        self.torch.add_param_group = _refuse_group  # type: ignore[assignment, method-assign]

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
    found = {name: known for name, known in names.items() if _group_of(known, {patterns: {}}) is not None}
    if not found:
        raise EngineError(f"`{patterns}`: no trained weight has such a name", f"they are {_some(list(names))}")
    return found


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _group_of(names: Sequence[str], groups: Groups) -> str | None:
    """The first key of which a pattern matches one of a weight's names."""
    return next((k for k in groups if any(fnmatchcase(n, p.strip()) for p in k.split("|") for n in names)), None)


# -- checks --------------------------------------------------------------------------------------------------------


def _check_form(make: Any, groups: Any) -> None:
    """Raises EngineError for an optimizer that is not a class or a function, and for groups that are no
    dictionaries."""
    if isinstance(make, torch.optim.Optimizer) or not callable(make):
        found = f"an instance of {type(make).__name__}" if isinstance(make, torch.optim.Optimizer) else repr(make)
        change = "as in `engine.optimizer(torch.optim.AdamW, lr=1e-3)`: the engine gives it the weights"
        raise EngineError(f"the optimizer is {found}", f"give its class and its options, {change}")
    if not isinstance(groups, Mapping) or not all(isinstance(options, Mapping) for options in groups.values()):
        change = 'as in `groups={"*.bias|*norm*": {"weight_decay": 0.0}}`'
        raise EngineError(
            "`groups` is not a dictionary of dictionaries", f"give options by patterns of names, {change}"
        )


def _check_used(key: str, chosen: Mapping[str, str | None], names: Mapping[str, Sequence[str]]) -> None:
    """Raises EngineError for a pattern that matches no trained weight."""
    if key in chosen.values():
        return
    taken = next((name for name in chosen if _group_of(names[name], {key: {}}) is not None), None)
    if taken is not None:
        reason = f"`{key}`: all weights that fit it are in groups before it, as is `{taken}` in `{chosen[taken]}`"
        raise EngineError(reason, "put the narrower pattern first: a weight belongs to the first that fits")
    raise EngineError(f"`{key}`: no trained weight has such a name", f"they are {_some(list(chosen))}")


def _called(make: Any) -> str:
    """The name of an optimizer's class, or of the function that makes one."""
    return getattr(make, "__name__", type(make).__name__)


def _refuse_group(group: Any) -> None:
    raise EngineError(
        "parameter groups are not added to an optimizer of an engine, whose weights are known when it is made",
        "name all groups when it is made: `engine.optimizer(..., groups={...})`",
    )


class _Reach(Enum):
    """What the step of an element depends on, beside its own gradients."""

    ELEMENT = "nothing"
    WEIGHT = "other elements of its weight"
    ALL = "other weights"
    DRAWN = "random numbers"


def _check(
    make: Make,
    weights: Sequence[OptimizedParam],
    elsewhere: str | None,
    options: Mapping[str, Any],
    group: Mapping[str, Any],
    by_matrix: str,
) -> None:
    """Raises EngineError for a group that the optimizer cannot step on as it would on one device. `elsewhere` is a
    weight of the group that only other ranks hold."""
    cut = next((w.name for w in weights if w.held.span is not None or w.held.piece.takes), None)
    listed = ", ".join(f"{name}={reprlib.repr(value)}" for name, value in {**options, **group}.items())
    try:
        reach = _reach_of(make, options, group)
    except EngineError:
        raise
    except Exception as error:  # a user's optimizer may raise anything
        raise EngineError(f"`{_called(make)}({listed})` cannot take a step: {error}", NEEDS) from error
    if reach in (_Reach.ALL, _Reach.DRAWN) and (cut or elsewhere) is not None:
        does = "looks at all weights together" if reach is _Reach.ALL else "draws random numbers"
        where = f"has `{cut}` in parts" if cut is not None else f"has `{elsewhere}` on other ranks"
        raise EngineError(
            f"`{_called(make)}` {does}, and this plan {where}",
            "take an optimizer that treats each element by itself (AdamW, SGD), or a plan in which each rank has all "
            "weights (data_parallel)",
        )
    if reach is _Reach.WEIGHT and cut is not None:
        raise EngineError(
            f"`{_called(make)}` looks at a weight as a whole, and this plan has `{cut}` in parts",
            f"write `{by_matrix}` into the plan, or take an optimizer that treats each element by itself (AdamW, SGD)",
        )


def _check_sparse(make: Make, name: str, options: Mapping[str, Any]) -> None:
    """Raises EngineError for an optimizer that could not train this weight on one device because its gradient is
    sparse."""
    if reason := refuses_sparse(make, options):
        raise EngineError(
            f"on one device the gradients of `{name}` are sparse, and `{_called(make)}` does not take them: {reason}",
            "make the embedding without `sparse=True`, or take an optimizer that does (SGD, Adagrad)",
        )


def refuses_sparse(make: Make, options: Mapping[str, Any]) -> str:
    """Torch's reason why an optimizer does not take sparse gradients; "" if it does.

    >>> refuses_sparse(torch.optim.SGD, {"lr": 0.1})
    ''
    """
    weight = torch.nn.Parameter(torch.zeros(2, 1))
    weight.grad = torch.eye(2, 1).to_sparse(1)
    try:
        make([weight], **options).step()
    except Exception as error:  # an optimizer may raise anything
        return str(error)
    return ""


def _reach_of(make: Make, options: Mapping[str, Any], group: Mapping[str, Any]) -> _Reach:
    """Finds out by some steps: on two weights together, on each by itself, and on two parts of the first, each
    flattened and by itself, as ranks would have them.

    Gradients are of several sizes, since an optimizer may look at their norm only where it is large. The numbers that
    an optimizer draws are not taken from the user's generator.
    """
    draw = torch.Generator().manual_seed(0)
    weights = [torch.randn(shape, generator=draw) for shape in ((6, 8), (5, 7))]
    sizes = torch.tensor([1.0, 100.0, 0.01])[:, None, None]
    gradients = [sizes * torch.randn(3, *w.shape, generator=draw) for w in weights]

    drawn = False

    def updates(start: list[torch.Tensor], gradients: list[torch.Tensor]) -> torch.Tensor:
        nonlocal drawn
        with torch.random.fork_rng(devices=[]):
            before = torch.random.get_rng_state()
            after = _after(make, options, group, start, list(zip(*gradients, strict=True)))
            drawn = drawn or not torch.equal(before, torch.random.get_rng_state())
        return torch.cat([(x - x0).flatten() for x, x0 in zip(after, start, strict=True)])

    def apart(start: list[torch.Tensor], gradients: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat([updates([x], [g]) for x, g in zip(start, gradients, strict=True)])

    together = updates(weights, gradients)
    each = apart(weights, gradients)
    if drawn:
        return _Reach.DRAWN
    if not _are_alike(together, each):
        return _Reach.ALL
    try:
        parts = apart(
            _two_parts(weights[0]), [torch.stack(g) for g in zip(*map(_two_parts, gradients[0]), strict=True)]
        )
    except Exception:  # it needs a matrix
        return _Reach.WEIGHT
    return _Reach.ELEMENT if _are_alike(each[: len(parts)], parts) else _Reach.WEIGHT


def _are_alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-3, atol=1e-6, equal_nan=True)


def _two_parts(x: torch.Tensor) -> list[torch.Tensor]:
    flat = x.flatten()
    return [flat[:17].clone(), flat[17:].clone()]


def _after(
    make: Make,
    options: Mapping[str, Any],
    group: Mapping[str, Any],
    start: Sequence[torch.Tensor],
    gradients: Sequence[Sequence[torch.Tensor]],
) -> list[torch.Tensor]:
    """The weights after a step on each of `gradients`, with a learning rate that changes them enough to be compared:
    the user's may be tiny, and 0 where a schedule begins."""
    parameters = [torch.nn.Parameter(t.clone()) for t in start]
    optimizer = make([{"params": parameters, **group}], **options)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise EngineError(f"`{_called(make)}` makes {type(optimizer).__name__}", "give a torch.optim.Optimizer")
    if unknown := [name for name in group if optimizer.defaults and name not in optimizer.defaults]:
        has = ", ".join(optimizer.defaults)
        raise EngineError(f"`{_called(make)}` has no option `{unknown[0]}` for a group", f"its options are {has}")
    for made in optimizer.param_groups:
        if (lr := made.get("lr")) is not None:
            made["lr"] = torch.full_like(lr, TRIAL_LR) if isinstance(lr, torch.Tensor) else TRIAL_LR
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    return [p.detach() for p in parameters]
