"""Finds results of a call, and gradients that its backward makes, that a collective may change in place: new tensors
that autograd does not keep. The call is run on meta tensors.
"""

import torch

from ssdsl.model.graph import Graph, Operator, numbered
from ssdsl.model.observe.call import memory_of, run, run_saving, spec_of

Numbers = frozenset[int]


def overwritable(operator: Operator, graph: Graph) -> tuple[Numbers, Numbers] | None:
    """The numbers of overwritable results, and of values read (in the order of their first use) with an overwritable
    gradient; None if the call does not run on meta tensors."""
    names = tuple(dict.fromkeys(o.value for o in operator.inputs))
    refs = iter([names.index(o.value) for o in operator.inputs])
    target, *args = numbered(operator.args, refs)
    with torch.device("meta"):
        given = [spec_of(name, graph).empty() for name in names]
    kwargs = numbered(operator.kwargs, refs)
    try:
        with torch.device("meta"):
            results, kept = run_saving(lambda tensors: run(target, tuple(args), kwargs, tensors), given)
        learning = [i for i, t in enumerate(given) if t.requires_grad]
        ends = [t for t in results if t.requires_grad]
        owed = [torch.empty_like(t) for t in ends]
        grads = torch.autograd.grad(ends, [given[i] for i in learning], owed, allow_unused=True) if learning else ()
        taken = {*kept, *map(memory_of, given)}
        used = taken | {memory_of(t) for t in (*results, *owed)}
        pairs = [(i, memory_of(g)) for i, g in zip(learning, grads, strict=True) if g is not None]
    except Exception:  # an operator may raise anything; a sparse gradient has no memory of its own
        return None
    once = [memory for _, memory in pairs]  # a gradient that two values share belongs to none of them
    return (
        frozenset(i for i, t in enumerate(results) if memory_of(t) not in taken),
        frozenset(i for i, memory in pairs if memory not in used and once.count(memory) == 1),
    )
