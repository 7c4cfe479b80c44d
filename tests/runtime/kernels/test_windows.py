"""Parts of operators that read windows: put together they are the whole, and so are their gradients, added."""

import itertools
import random

import pytest
import torch

from ssdsl.model.graph import Operator
from ssdsl.runtime import Part
from tests.model.windowed import KINDS, Windowed, drawn

CALLS = 40  # of each kind
Run = tuple[int, int]


@pytest.mark.parametrize("kind", KINDS)
def test_parts_are_the_whole(kind: str) -> None:
    calls = [call for seed in range(CALLS) if (call := drawn(kind, seed)) is not None]
    assert len(calls) > CALLS // 4
    for seed, call in enumerate(calls):
        check(call, random.Random(seed))


def check(call: Windowed, draw: random.Random) -> None:
    """Cuts some axes of space, and compares results and gradients of all tensors."""
    operator = call.operator()
    leaves = {n: t.double().requires_grad_() for n, t in call.tensors.items()}
    if call.call.kind.startswith("upsample"):  # which is rounded in the precision of what it is given
        leaves = {n: t.detach().float().requires_grad_() for n, t in leaves.items()}
    call.tensors = leaves
    whole = call.whole(leaves["x"])
    gradient = torch.randn_like(whole[0])
    expected = torch.autograd.grad(whole[0], leaves.values(), gradient)
    found = [torch.full_like(y, -1) for y in whole]
    sums = {n: torch.zeros_like(t) for n, t in leaves.items()}
    for parts, runs in cut(call, operator, draw):
        x = leaves["x"].detach()
        for part, (start, end) in zip(parts, runs, strict=True):
            x = x.narrow(part.axis, start, end - start)
        x = x.clone().requires_grad_()
        results = call.part(x, parts) if parts else call.whole(x)
        there = tuple(slice(None) if p is None else slice(p.start, p.end) for p in by_axis(parts, whole[0].dim()))
        for y, part_of in zip(found, results, strict=True):
            assert (not parts or part_of.is_contiguous()) and y[there].shape == part_of.shape, call.call
            y[there] = part_of.detach()
        given = {**leaves, "x": x}
        gradients = torch.autograd.grad(results[0], given.values(), gradient[there], materialize_grads=True)
        for (name, total), part_of in zip(sums.items(), gradients, strict=True):
            here = [slice(None)] * total.dim()
            if name == "x":
                for part, (start, end) in zip(parts, runs, strict=True):
                    here[part.axis] = slice(start, end)
            total[tuple(here)] += part_of
    for y, z in zip(found, whole, strict=True):
        torch.testing.assert_close(y, z, msg=lambda m: f"{call.call}: {m}")
    torch.testing.assert_close([*sums.values()], [*expected], msg=lambda m: f"{call.call}: {m}")


def by_axis(parts: list[Part], rank: int) -> list[Part | None]:
    return [next((p for p in parts if p.axis == axis), None) for axis in range(rank)]


def cut(call: Windowed, operator: Operator, draw: random.Random) -> list[tuple[list[Part], list[Run]]]:
    """The parts of a random partition of some axes, with the runs of the input that each needs."""
    rank = call.tensors["x"].dim()
    each = []
    for axis in range(rank - call.space, rank):
        (number,) = operator.inputs[0].axes[axis]
        dim = operator.dims[number]
        if dim.window is None or draw.random() < 0.3:
            continue
        results = operator.dims[dim.window.of].size
        ends = sorted(draw.sample(range(1, results), min(results - 1, draw.randint(1, 3))))
        runs = itertools.pairwise([0, *ends, results])
        needs = [(run, dim.window.shape.needs(*run)) for run in runs]
        each.append([(Part(axis, *run, need[0], dim.size), need) for run, need in needs])
    return [([p for p, _ in chosen], [n for _, n in chosen]) for chosen in itertools.product(*each)]
