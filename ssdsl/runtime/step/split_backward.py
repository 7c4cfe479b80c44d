"""Split backward: first the gradients of a block's inputs (dgrad), later, as a task of its own, those of its weights
(wgrad).

Each operator on activations and weights runs in a small autograd graph of its own. The first half asks that graph only
for the gradients of the activations; the graph and the gradient of its output wait in a list for the second half. So
nothing is computed twice, and nothing is kept beyond what the weights' gradients need. For y = x @ w with x [b, n] and
w [n, k], the first half computes x.grad = y.grad @ w.T, and keeps x and y.grad [b, k]; the second half computes w.grad
= x.T @ y.grad. The split of backward is that of Zero Bubble (Qi et al. 2023, arXiv 2401.10241).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ..ranks.world import World, here
from .recompute import recomputing

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class DeferredWgrad:
    """The deferred weight gradients of one operator: `gradients[k]` is the gradient of `outputs[k]`, in its shape."""

    outputs: list[Any]  # edges of the operator's own graph, so that its outputs can be freed
    gradients: list[torch.Tensor]
    leaves: list[torch.Tensor]  # the weights, as leaves of the operator's own graph
    weights: list[torch.Tensor]  # the weights to whose `grad` these gradients are added, in the order of `leaves`
    inputs: list[Any]  # edges of the activations, whose gradients are asked for once more where a kernel needs that


@dataclass(frozen=True)
class RecomputedArgs:
    """Arguments of a recomputed section whose gradients come in the second half, and the tensors that they are copies
    of."""

    copies: list[torch.Tensor]
    originals: list[torch.Tensor]


Waiting = list[DeferredWgrad | RecomputedArgs]
ALWAYS = torch.empty(0, requires_grad=True)  # connects calls without a differentiable input to autograd
WHOLE = ("NativeGroupNormBackward0",)  # on a CPU it writes its input's gradient, asked for or not, if channels lie last


@contextmanager
def collecting(world: World) -> Iterator[Waiting]:
    """A context for a backward whose weight gradients are deferred into the yielded list."""
    before, world.waiting = world.waiting, []
    try:
        yield world.waiting
    finally:
        world.waiting = before


def finish(waiting: Waiting) -> None:
    """The second half: adds the deferred gradients of weights, last operator first.

    Gradients of tensors computed from weights are passed on at the end; those of arguments of recomputed sections,
    after the operators that used them.
    """
    computed: list[tuple[torch.Tensor, torch.Tensor]] = []
    relays: list[RecomputedArgs] = []
    while waiting:
        half = waiting.pop(0)
        if isinstance(half, RecomputedArgs):
            relays.append(half)
            continue
        if (tracer := here().tracer) is not None:
            tracer.follow(half.outputs)
        if half.inputs:
            found = torch.autograd.grad(half.outputs, [*half.leaves, *half.inputs], half.gradients)
            for leaf, gradient in zip(half.leaves, found, strict=False):
                leaf.grad = gradient
        else:
            torch.autograd.backward(half.outputs, half.gradients, inputs=half.leaves)
        computed += _add(half.weights, half.leaves)
    _hand_on(computed)
    _hand_on([pair for relay in relays for pair in _add(relay.originals, relay.copies)])


def _add(weights: list[torch.Tensor], leaves: list[torch.Tensor]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Adds the leaves' gradients to those of the weights; yields tensors that are not leaves themselves, with their
    gradients."""
    for weight, leaf in zip(weights, leaves, strict=True):
        if leaf.grad is not None and weight.is_leaf:  # autograd would copy a gradient that others hold
            weight.grad = leaf.grad if weight.grad is None else weight.grad.add_(leaf.grad)
        elif leaf.grad is not None:
            yield weight, leaf.grad


def _hand_on(computed: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    if computed:
        torch.autograd.backward([w for w, _ in computed], [g for _, g in computed])


def first_half(
    roots: Sequence[torch.Tensor] | Sequence[GradientEdge], gradients: list[torch.Tensor], leaves: list[torch.Tensor]
) -> None:
    """Adds to the `grad` of `leaves`, and leaves weights out. `gradients[k]` is the gradient of `roots[k]`, in its
    shape."""
    if roots:
        if (tracer := here().tracer) is not None:
            tracer.follow(roots)
        torch.autograd.backward(roots, gradients, inputs=[ALWAYS, *leaves])


def halves(run: Callable[..., Any], activations: Tensors, weights: Tensors) -> Any:
    """run(*activations, *weights); its backward appends a `DeferredWgrad` to the rank's list."""
    if not torch.is_grad_enabled():
        return run(*activations, *weights)
    return _Halves.apply(run, ALWAYS, weights, *activations)  # type: ignore[no-untyped-call]


class _Halves(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Callable[..., Any], always: torch.Tensor, weights: Tensors, *given: torch.Tensor) -> Any:
        with torch.enable_grad():
            activations = [t.detach().requires_grad_(t.requires_grad) for t in given]
            leaves = [t.detach().requires_grad_(t.requires_grad) for t in weights]
            result = run(*activations, *leaves)
        outputs = _tuple(result)
        edges = [get_gradient_edge(o) if o.requires_grad else None for o in outputs]  # not the arguments
        learning = [get_gradient_edge(a) if a.requires_grad else None for a in activations]
        ctx.held = learning, leaves, weights, edges
        ctx.world = here()
        ctx.set_materialize_grads(False)
        return _detached(result)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        activations, leaves, weights, edges = ctx.held
        ctx.held = None
        given = [(e, g) for e, g in zip(edges, gradients, strict=True) if e is not None and g is not None]
        roots, grads = [e for e, _ in given], [g for _, g in given]
        learning = [a for a in activations if a is not None]
        found: Iterator[Any] = iter(())
        if learning and roots:
            found = iter(torch.autograd.grad(roots, learning, grads, retain_graph=True, allow_unused=True))
        chosen = [(leaf, weight) for leaf, weight in zip(leaves, weights, strict=True) if leaf.requires_grad]
        if chosen and roots:
            again = learning if any(edge.node.name() in WHOLE for edge in roots) else []
            leaves, weights = (list(column) for column in zip(*chosen, strict=True))
            ctx.world.waiting.append(DeferredWgrad(roots, grads, leaves, weights, again))
        return None, None, None, *(next(found, None) if a is not None else None for a in activations)


def checkpoint_halves(run: Callable[..., Any], *args: Any) -> Any:
    """run(*args) with recomputation: autograd saves only the inputs; backward recomputes, split in halves as well."""
    if not torch.is_grad_enabled():
        return run(*args)
    return _Recomputed.apply(run, ALWAYS, *args)  # type: ignore[no-untyped-call]


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Callable[..., Any], always: torch.Tensor, *args: Any) -> Any:
        ctx.run, ctx.others = run, [None if isinstance(a, torch.Tensor) else a for a in args]
        ctx.places = [n for n, a in enumerate(args) if isinstance(a, torch.Tensor)]
        ctx.save_for_backward(*(args[n] for n in ctx.places))
        ctx.set_materialize_grads(False)
        ctx.world = here()
        return _detached(run(*args))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        args = list(ctx.others)
        given = dict(zip(ctx.places, ctx.saved_tensors, strict=True))
        for n, tensor in given.items():
            args[n] = tensor.detach().requires_grad_(tensor.requires_grad)
        with torch.enable_grad(), recomputing(ctx.world):
            outputs = _tuple(ctx.run(*args))
        learning, before = [n for n in given if args[n].requires_grad], len(ctx.world.waiting)
        first_half(*_given(outputs, gradients), [args[n] for n in learning])
        found = [a.grad if isinstance(a, torch.Tensor) else None for a in args]
        behind = _leaves([w for half in ctx.world.waiting[before:] for w in half.weights])
        late = [n for n in learning if id(args[n]) in behind]
        for n in late:
            args[n].grad = None  # the second half sets it
        ctx.world.waiting.append(RecomputedArgs([args[n] for n in late], [given[n] for n in late]))
        return None, None, *found


def _leaves(tensors: list[torch.Tensor]) -> set[int]:
    """The identities of the leaves from which tensors are computed; a leaf counts as computed from itself."""
    found = {id(t) for t in tensors if t.is_leaf}
    nodes, seen = [t.grad_fn for t in tensors if t.grad_fn is not None], set()
    while nodes:
        node = nodes.pop()
        if node not in seen:
            seen.add(node)
            found.add(id(getattr(node, "variable", None)))
            nodes += [n for n, _ in node.next_functions if n is not None]
    return found


def _detached(result: Any) -> Any:
    """The same tensors, detached, so that later operators may reuse their memory."""
    return result.detach() if isinstance(result, torch.Tensor) else tuple(t.detach() for t in result)


def _tuple(result: Any) -> Tensors:
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


def _given(
    outputs: Tensors, gradients: tuple[torch.Tensor | None, ...]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The outputs that have a gradient, and the gradients."""
    given = [(o, g) for o, g in zip(outputs, gradients, strict=True) if g is not None and o.requires_grad]
    return [o for o, _ in given], [g for _, g in given]
