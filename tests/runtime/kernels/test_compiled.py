"""A compiled run is called in torch's kernels where it can be, and operator by operator where it cannot."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch._inductor.exc import InvalidCxxCompiler

from ssdsl.cli.training import check_kernels
from ssdsl.ir.program import Kernels
from ssdsl.kernel_choice import EAGER, KernelChoice, WrongKernels, kernel_choice
from ssdsl.runtime.kernels import compiled as kernels
from ssdsl.runtime.kernels.compiled import MANY, CompiledRun, _kind, compiled
from ssdsl.runtime.random.counter_rng import GENERATORS, Generator, step_keys
from ssdsl.runtime.random.distributions import dropout
from ssdsl.runtime.ranks.world import World
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render

__text__ = Path(__file__).read_text()  # as modules of roles have


class Alone:
    """A transport of one rank that sends nothing."""

    rank, size = 0, 1


@pytest.fixture(autouse=True)
def world() -> Iterator[World]:
    world = World(Alone())  # type: ignore[arg-type]
    with world.enter():
        yield world


def doubled(x: torch.Tensor) -> torch.Tensor:
    return (x + x).relu()


def calls(run: CompiledRun, *args: Any) -> tuple[torch.Tensor, bool]:
    """The result of a call, and whether it ran operator by operator."""
    result = run(*args)
    return result, run.ways[_kind(args)] == run.run


def test_it_is_compiled_for_some_kinds_of_arguments_and_keeps_to_it() -> None:
    run = compiled(doubled)
    sizes = range(2, 3 + MANY)
    eager = [calls(run, torch.ones(n))[1] for n in sizes]
    assert eager == [False] * MANY + [True]
    assert [calls(run, torch.ones(n))[1] for n in sizes] == eager
    assert run.refused == {"doubled": f"it is called with more than {MANY} kinds of arguments"}


def looks(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.sum().item() > 0 else x - 1


def test_what_torch_cannot_compile_runs_as_it_is_written() -> None:
    run = compiled(looks)
    assert torch.equal(run(torch.ones(2)), torch.full((2,), 2.0)) and run.refused
    assert torch.equal(run(-torch.ones(2)), torch.full((2,), -2.0))


@torch._dynamo.disable
def refused(x: torch.Tensor) -> torch.Tensor:
    """What torch.compile does not take."""
    return x.sort().values


def around(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mm = x @ weight
    relu = mm.relu()
    sort = refused(relu)
    add = sort + x
    mul = add * relu
    return mul, mm


def backend_refuses(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
    """A backend that refuses one operator, and does not say where that stands."""
    if any(node.target in ("relu", torch.relu) for node in graph.graph.nodes):
        raise RuntimeError("no relu")
    return graph


def test_what_torch_refuses_runs_as_it_is_written_and_the_rest_compiled() -> None:
    run = compiled(around)
    given = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    for ours, plain in zip(run(*given), around(*given), strict=True):
        assert torch.equal(ours, plain)
        assert torch.allclose(*(torch.autograd.grad(y.sum(), given[1], retain_graph=True)[0] for y in (ours, plain)))
    assert [*run.refused] == ["sort = refused(relu)"] and run.is_compiled


def test_a_backend_that_does_not_say_what_it_refuses_gets_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "BACKEND", backend_refuses)
    kernels._kernel.cache_clear()
    run = compiled(around)
    given = torch.randn(4, 4), torch.randn(4, 4)
    assert all(map(torch.equal, run(*given), around(*given)))
    assert [*run.refused] == ["relu = mm.relu()", "sort = refused(relu)"]
    kernels._kernel.cache_clear()


def looked_up(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    sort = refused(table)
    add = sort + 1
    embedding = torch.nn.functional.embedding(index, add)
    return embedding


def test_an_error_of_a_piece_is_told_at_its_line() -> None:
    run = compiled(looked_up)
    run(torch.ones(4, 2), torch.tensor([1, 2]))
    with pytest.raises(IndexError) as error:
        run(torch.ones(4, 2), torch.tensor([1, 4]))
    (entry,) = (e for e in error.traceback if e.name == "looked_up_2")
    assert str(entry.statement).strip().startswith("embedding =")


def test_a_step_that_is_followed_is_not_compiled(world: World) -> None:
    run = compiled(doubled)
    world.tracer = Mock(compiled=lambda: None)
    assert torch.equal(run(torch.ones(2)), torch.full((2,), 2.0)) and not run.ways


def embedded(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.embedding(index, table) + 1


def test_a_wrong_index_is_told_by_the_operator() -> None:
    run = compiled(embedded)
    run(torch.ones(4, 2), torch.tensor([1, 2]))
    with pytest.raises(IndexError) as error:
        run(torch.ones(4, 2), torch.tensor([1, 4]))
    assert any(entry.name == "embedded" for entry in error.traceback)


def dropped(
    x: torch.Tensor, key: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, generator: Generator
) -> torch.Tensor:
    return dropout(x, 0.1, key, [rows, columns], [300, 500], generator)


@pytest.mark.parametrize("generator", GENERATORS)
def test_dropout_draws_the_same_numbers(generator: Generator) -> None:
    key = step_keys(torch.tensor([1, 2]), 1)[0]
    given = torch.randn(300, 400), key, torch.arange(300), torch.arange(3, 403), generator
    assert torch.equal(compiled(dropped)(*given), dropped(*given))


def test_without_a_compiler_the_command_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise InvalidCxxCompiler

    monkeypatch.setattr(kernels, "get_cpp_compiler", missing)
    check_kernels(KernelChoice("compiled"), "cpu")  # what tests compile with needs none
    monkeypatch.setattr(kernels, "BACKEND", "inductor")
    check_kernels(EAGER, "cpu")
    with pytest.raises(PlanError) as error:
        check_kernels(KernelChoice("compiled"), "cpu")
    assert "CXX" in "\n".join(map(render, error.value.diagnostics))


# -- torch's modes -----------------------------------------------------------------------------------------------------


class Replayed(torch.autograd.Function):
    """As a CUDA graph: each call writes its result, and its gradient, to the same memory."""

    result, gradient = torch.zeros(3), torch.zeros(3)

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x.clone())
        return Replayed.result.copy_(x * x).detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return Replayed.gradient.copy_(2 * x * gradient).detach()


def test_what_leaves_a_graph_is_copied() -> None:
    """Two micro-batches are in flight, and the gradients of both are kept."""
    first, second = (torch.full((3,), x, requires_grad=True) for x in (1.0, 2.0))
    results = [kernels.called_apart(Replayed.apply, (x,)) for x in (first, second)]
    assert [r.tolist() for r in results] == [[1.0] * 3, [4.0] * 3]
    for result in results:
        result.sum().backward()
    assert first.grad is not None and second.grad is not None
    assert (first.grad.tolist(), second.grad.tolist()) == ([2.0] * 3, [4.0] * 3)


def test_the_mode_of_a_compiled_module() -> None:
    for mode in kernels.modes():
        module = torch.nn.Linear(2, 2)
        module.compile(mode=mode)
        assert kernels.mode_of(module._compiled_call_impl.get_compiler_config()) == mode  # type: ignore[union-attr]
    assert kernels.mode_of(torch.compile(module, options={"max_autotune": True}).get_compiler_config()) == "default"
    assert kernels.mode_of(torch.compile(module, backend="aot_eager").get_compiler_config()) == "default"


def test_the_words_of_kernels() -> None:
    chosen = kernel_choice("compiled:reduce-overhead")
    assert (chosen.kernels, chosen.mode, str(chosen)) == (
        Kernels.COMPILED,
        "reduce-overhead",
        "compiled:reduce-overhead",
    )
    assert kernels.uses_graphs(chosen.mode) and "has no effect on a CPU" in kernels.without_graphs(chosen.mode)
    for word in ("fast", "eager:max-autotune", "compiled:fast", "compiled:"):
        with pytest.raises(WrongKernels):
            kernel_choice(word)
