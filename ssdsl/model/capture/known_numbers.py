"""Gives a forward the numbers of tensors that it asks for during capture (`if x < y`, `int(x)`, `x.tolist()`), where
they are the same in every step.

What depends on the values of tensors cannot be captured. But some tensors have values that never change, and some
comparisons have only one result: a mask in a buffer that nothing writes to is the causal one or not, and a draw from
[0, 1) is never below 0. The graph that is being recorded shows what a number depends on: it is followed back to its
leaves, and computed if these are constants.
"""

import linecache
import operator
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from ssdsl.model.capture.preserve import patched
from ssdsl.model.capture.source_line import TORCH, Place, calling
from ssdsl.model.checks.inplace_changes import written_by
from ssdsl.model.load.model import MOST, Model
from ssdsl.record import Record

aten = torch.ops.aten
DRAWS = (aten.rand.default, aten.rand_like.default)
COMPARISONS = (aten.lt.Scalar, aten.le.Scalar, aten.gt.Scalar, aten.ge.Scalar)
NUMBERS = ("__bool__", "__int__", "__float__", "__complex__", "__index__", "__format__", "item", "tolist", "is_nonzero")
CONDITION = re.compile(r"(el)?if (?!.*\b(not|and|or)\b).*:")
COMPARING = ("equal", "allclose")
ASKING = [*((torch.Tensor, name) for name in (*NUMBERS, *COMPARING)), *((torch, name) for name in COMPARING)]


class Question(Record):
    """The line of the user's code that asks for the number of a tensor, and whether it is a condition."""

    place: Place | None
    is_condition: bool


@dataclass(slots=True)
class Constants:
    """The small buffers of a module; `used` are those that an answer depends on, with their real values, and
    `questions` has for some of them the first question."""

    model: Model
    given: dict[str, torch.Tensor]
    nodes: dict[fx.Node, str] = field(default_factory=dict)
    used: dict[str, torch.Tensor] = field(default_factory=dict)
    questions: dict[str, Question] = field(default_factory=dict)

    @staticmethod
    def of(model: Model) -> "Constants":
        return Constants(model, {n: b for n, b in model.module.named_buffers() if b.numel() <= MOST})

    def find(self, module: torch.nn.Module) -> None:
        """Finds the nodes of the buffers; to be called when the forward begins."""
        for name, buffer in module.named_buffers():
            if name in self.given and (node := _node(buffer)) is not None:
                self.nodes[node] = name

    def value(self, name: str) -> torch.Tensor:
        """The real value of a buffer. Raises Unknown if it has none."""
        if name not in self.used:
            found = self.model.numbers(name, self.given[name])
            if found is None:
                raise Unknown
            self.used[name] = found
        return self.used[name]


class Unknown(Exception):
    """A value depends on what changes from step to step."""


@contextmanager
def answering(constants: Constants) -> Iterator[None]:
    """A context in which a forward that is recorded gets the numbers that are known."""
    with ExitStack() as stack:
        for owner, name in ASKING:
            stack.enter_context(patched(owner, name, _answering(getattr(owner, name), constants)))
        yield


def _answering(function: Callable[..., Any], constants: Constants) -> Callable[..., Any]:
    def answer(*args: Any, **kwargs: Any) -> Any:
        with suppress(Unknown):
            return _answer(function, args, kwargs, constants)
        if function.__name__ == "__bool__" and _is_check_of_torch(sys._getframe(1)):
            return False
        return function(*args, **kwargs)  # torch answers, or fails

    return answer


def _is_check_of_torch(frame: FrameType) -> bool:
    """Whether a line of torch's own code asks for a condition alone, and raises an error if it holds, as
    `gaussian_nll_loss` does for negative variances. A graph checks no numbers."""
    file = frame.f_code.co_filename
    if not file.startswith(TORCH):
        return False
    line, following = (linecache.getline(file, frame.f_lineno + n).strip() for n in (0, 1))
    return CONDITION.fullmatch(line) is not None and following.startswith("raise ")


def _answer(function: Callable[..., Any], args: Any, kwargs: dict[str, Any], constants: Constants) -> Any:
    """The result of a call; raises Unknown."""
    nodes: list[Any] = [_node(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
    if None in nodes or any(isinstance(arg, torch.Tensor) for arg in kwargs.values()):
        raise Unknown
    root = _root()
    with _disable_current_modes(), torch.no_grad():
        known = _KnownValues(constants, next(node.graph for node in nodes if isinstance(node, fx.Node)), root)
        given = [known.of(node) for node in nodes]
        question = Question(calling(), function.__name__ not in NUMBERS or function.__name__ == "__bool__")
        constants.questions = dict.fromkeys(known.read, question) | constants.questions
        return function(*given, **kwargs)


def known_positions(tensor: torch.Tensor, constants: Constants) -> list[list[int]]:
    """Along each axis of a tensor, the positions of what is not zero; raises Unknown."""
    if (node := _node(tensor)) is None:
        raise Unknown
    root = _root()
    with _disable_current_modes(), torch.no_grad():
        found: list[list[int]] = aten.nonzero(_KnownValues(constants, node.graph, root).of(node)).T.tolist()
        return found


def _root() -> Any:
    """The module that has the constants of the graph under construction."""
    return getattr(getattr(get_proxy_mode(), "tracer", None), "root", None)


def _node(tensor: torch.Tensor) -> fx.Node | None:
    """The node that makes a tensor, in the graph under construction."""
    mode = get_proxy_mode()
    slot: Any = get_proxy_slot(tensor, mode.tracer, None) if mode is not None else None
    node = getattr(getattr(slot, "proxy", None), "node", None)
    return node if isinstance(node, fx.Node) else None


def _of_draw(node: fx.Node) -> torch.Tensor | None:
    """The result of comparing draws from [0, 1) with a bound; None unless it is the same for every draw."""
    given = node.args[0] if node.args else None
    bound = node.args[1] if len(node.args) > 1 else None
    if not isinstance(given, fx.Node) or given.target not in DRAWS or not isinstance(bound, (int, float)):
        return None
    if node.target not in COMPARISONS:
        return None
    dtype = given.meta["val"].dtype
    ends = torch.tensor([0, 1 - torch.finfo(dtype).eps / 2], dtype=dtype)  # the least draw and the largest one
    least, largest = node.target(ends, bound).tolist()
    return torch.full(node.meta["val"].shape, least) if least == largest else None


class _KnownValues:
    """The values of nodes that depend on constants alone, as far as a graph has been recorded."""

    def __init__(self, constants: Constants, graph: fx.Graph, root: Any) -> None:
        self.constants, self.root = constants, root
        nodes = [node for node in graph.nodes if node.target is not aten.detach_.default]  # it writes no numbers
        self.changed = {memory for node in nodes for written in written_by(node) for memory in _memory(written)}
        self.found: dict[fx.Node, Any] = {}
        self.read: list[str] = []  # the buffers on which these values depend

    def of(self, item: Any) -> Any:
        """The value of a node, or another argument as it is; raises Unknown."""
        if not isinstance(item, fx.Node):
            return item
        if item not in self.found:
            self.found[item] = self._computed(item)
        return self.found[item]

    def _computed(self, node: fx.Node) -> Any:
        if not self.changed.isdisjoint(_memory(node)):  # perhaps through a view
            raise Unknown
        if node in self.constants.nodes:
            self.read.append(self.constants.nodes[node])
            return self.constants.value(self.constants.nodes[node])
        target: Any = node.target
        if node.op == "get_attr":
            return self._constant(target)
        if target is not operator.getitem:
            if not isinstance(target, torch._ops.OpOverload) or _size(node) > MOST:
                raise Unknown
            if (found := _of_draw(node)) is not None:
                return found
            if torch.Tag.nondeterministic_seeded in target.tags:
                raise Unknown
        args, kwargs = fx.node.map_aggregate((node.args, node.kwargs), self.of)
        return target(*args, **kwargs)

    def _constant(self, name: str) -> torch.Tensor:
        """A tensor that the forward makes of numbers (`torch.tensor([1, 2])`)."""
        found = getattr(self.root, name, None)
        if not isinstance(found, torch.Tensor) or isinstance(found, FakeTensor) or found.numel() > MOST:
            raise Unknown
        return found


def _memory(node: fx.Node) -> set[int]:
    """The memory of a node's tensors."""
    tensors = (result for result in tree_leaves(node.meta.get("val")) if isinstance(result, torch.Tensor))
    return {tensor.untyped_storage()._cdata for tensor in tensors}


def _size(node: fx.Node) -> int:
    results = tree_leaves(node.meta.get("val"))
    return sum(result.numel() if isinstance(result, torch.Tensor) else MOST + 1 for result in results)
