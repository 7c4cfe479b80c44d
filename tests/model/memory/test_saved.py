"""What autograd keeps, by the table and by autograd's own account: operators, their parts, whole models."""

import functools
import importlib.util
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch

from ssdsl.ir.function import Split
from ssdsl.model.graph import Graph, Operator, Origin, Stage
from ssdsl.model.load.model import Model
from ssdsl.model.memory.saved import collectives, saved
from ssdsl.model.memory.storage import Storage, aliases
from ssdsl.model.module_to_graph import capture
from ssdsl.model.observe.call import empty
from ssdsl.model.observe.observe import observe
from ssdsl.model.ops.reader import Reader, kernel_dims
from ssdsl.record import replace
from tests.captured import captured as captured_model
from tests.captured import captured_family
from tests.model.parts import Groups, Values, call, indices_of, outside, run_graph, split
from tests.model.rule_cases import CASES
from tests.model.test_module_to_graph import MODELS

INPUT = {"x": torch.zeros(())}
Account = tuple[set[str], int]  # the values kept, and the bytes of what is kept beside them


@functools.cache
def captured(family: str) -> tuple[Graph, Values]:
    module, graph = captured_family(family)
    return graph, run_graph(graph, outside(graph, module, INPUT))


TRANSPOSED = "_linalg_svd_out2"  # by its fake tensors in torch 2.13 it lies by rows


@pytest.mark.thinned(14)
@pytest.mark.parametrize("family", CASES)
def test_values_lie_where_the_table_says(family: str) -> None:
    graph, values = captured(family)
    places = graph.storages
    roots: dict[int, str] = {}
    for name in graph.values:
        if values[name].numel():
            root = roots.setdefault(values[name].untyped_storage().data_ptr(), name)
            assert places[name].root == root, name
            assert places[name].strides == values[name].stride() or name == TRANSPOSED, name


@pytest.mark.thinned(14)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("family", CASES)
def test_autograd_keeps_what_the_table_says(family: str, dtype: torch.dtype) -> None:
    graph, values = captured(family)
    for operator in (o for o in different(graph) if o.stage is Stage.COMPUTE):
        for learning in subsets(operator, graph):
            changed = only(graph, operator, learning, dtype)
            given = [tensor(values[o.value], o.value in learning, dtype) for o in operator.inputs]
            where = f"{operator.args[0]}{operator.args[1:]} of {[list(x.shape) for x in given]} where {learning} learn"
            try:
                truth = kept(operator, given)
            except RuntimeError as error:  # some kernels know no bfloat16
                assert dtype is torch.bfloat16, f"{where}: {error}"
                continue
            table = by_table(replace(operator, observed=None), changed)  # torch is asked anew, of the whole call
            assert _rooted(table, graph) == _rooted(truth, graph), where


def different(graph: Graph) -> list[Operator]:
    """One operator of each signature: equal calls keep the same."""
    return list({graph.signatures[o.name]: o for o in graph.operators}.values())


def _rooted(account: Account, graph: Graph) -> Account:
    """The account by storages: two views of one tensor are kept as one."""
    values, beside = account
    return {graph.storages[value].root for value in values}, beside


def subsets(operator: Operator, graph: Graph) -> Iterator[frozenset[str]]:
    """All the operands that require a gradient, and each of them alone."""
    if any(graph.values[o.value].differentiable for o in operator.outputs):
        learning = dict.fromkeys(o.value for o in operator.inputs if graph.values[o.value].differentiable)
        yield frozenset(learning)
        yield from (frozenset({value}) for value in learning if len(learning) > 1)


def only(graph: Graph, operator: Operator, learning: frozenset[str], dtype: torch.dtype) -> Graph:
    """The graph in which these operands alone require a gradient, its numbers in another dtype."""
    name, outputs = str(dtype).removeprefix("torch."), {o.value for o in operator.outputs}
    values = {
        n: replace(
            v,
            differentiable=n in learning or (n in outputs and v.differentiable),
            dtype=name if v.dtype == "float32" else v.dtype,
        )
        for n, v in graph.values.items()
    }
    return replace(graph, values=values)


def tensor(value: torch.Tensor, learns: bool, dtype: torch.dtype) -> torch.Tensor:
    changed = value.detach().to(dtype) if value.dtype is torch.float32 else value.detach()
    return changed.requires_grad_(learns)


def kept(
    operator: Operator,
    given: Sequence[torch.Tensor],
    cuts: tuple[Split, ...] = (),
    local: Mapping[str, Any] | None = None,
) -> Account:
    """What autograd says that it keeps of a call."""
    storage: dict[int, torch.UntypedStorage] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        storage[x.untyped_storage().data_ptr()] = x.untyped_storage()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        outputs = call(operator, given, cuts, dict(local or {}))
    named = [*zip(operator.outputs, outputs, strict=True), *zip(operator.inputs, given, strict=True)]
    names = {x.untyped_storage().data_ptr(): o.value for o, x in named}
    beside = sum(s.nbytes() for p, s in storage.items() if p not in names)
    return {names[p] for p in storage if p in names}, beside


def by_table(operator: Operator, graph: Graph, cuts: tuple[Split, ...] = ()) -> Account:
    """What the table says of a call, or of a part of it; an output that is a view of an input is that input."""
    sizes = [d.size // math.prod(c.digit.parts for c in cuts if c.dim == i) for i, d in enumerate(operator.dims)]
    found = saved(operator, graph, sizes)
    views = aliases(operator, graph.storages)
    values = {views.get(v, v) for v in found.values(operator)}
    return values, sum(e.size_bytes for e in found.extras)


@pytest.mark.thinned(11)
@pytest.mark.parametrize("family", CASES)
def test_a_part_keeps_what_follows_from_its_sizes(family: str) -> None:
    graph, values = captured(family)
    calls = [o for o in different(graph) if any(graph.values[v.value].differentiable for v in o.outputs)]
    graph = replace(graph, storages={n: Storage(n, empty(v).stride()) for n, v in graph.values.items()})
    for operator in (replace(o, observed=observe(o, graph)) for o in calls):
        # where windows are read, parts at the ends keep padded copies: the table counts the input's region instead
        windowed = {x.window.of for x in operator.dims if x.window is not None}
        free = (d for d, x in enumerate(operator.dims) if not x.fixed and d not in windowed and x.size in (4, 6, 8))
        for dim in free:
            cuts = (split("c", dim, operator.dims[dim].size // 2, 2, True),)
            truth = part_keeps(operator, graph, values, cuts)
            where = f"{operator.args[0]}{operator.args[1:]} split by {operator.dims[dim].name}"
            assert by_table(operator, graph, cuts) == truth, where


def part_keeps(operator: Operator, graph: Graph, values: Values, cuts: tuple[Split, ...]) -> Account:
    """What the second of two parts keeps, while the first one answers it."""
    groups = Groups(cuts)
    found: dict[int, Account] = {}

    def run(at: int) -> None:
        given = parts_of(operator, graph, values, cuts, at)
        found[at] = kept(operator, given, cuts, {"c": at} | groups.of((at,)))

    in_threads(run)
    return found[1]


@pytest.mark.parametrize("family", CASES)
def test_a_kernel_sends_what_the_table_says(family: str) -> None:
    """The collectives of two parts, forward and backward, as they were observed or as the row says."""
    graph, values = captured(family)
    for operator in (o for o in different(graph) if o.row.kernel is not None and o.stage is not Stage.CONSTANT):
        kernel = operator.row.kernel
        learns = any(graph.values[o.value].differentiable for o in operator.outputs)
        for dim in kernel_dims(operator, kernel.axes[-1]) if kernel.tells("group") else ():
            if operator.dims[dim].fixed or operator.dims[dim].size not in (4, 6, 8):
                continue
            cuts = (split("c", dim, operator.dims[dim].size // 2, 2, True),)
            sizes = [d.size // 2 if n == dim else d.size for n, d in enumerate(operator.dims)]
            reader = Reader(operator, graph, sizes)
            told = [(c.kind, c.size_bytes) for c in collectives(reader, kernel, 2, back=False)]
            told += [(c.kind, c.size_bytes) for c in collectives(reader, kernel, 2, back=True) if learns]
            where = f"{operator.args[0]}{operator.args[1:]} split by {operator.dims[dim].name}"
            assert sends(operator, graph, values, cuts) == told, where


def sends(operator: Operator, graph: Graph, values: Values, cuts: tuple[Split, ...]) -> list[tuple[str, int]]:
    """What one of two parts sends."""
    groups = Groups(cuts)

    def run(at: int) -> None:
        given = parts_of(operator, graph, values, cuts, at)
        outputs = call(operator, given, cuts, {"c": at} | groups.of((at,)))
        ends = [x for x in outputs if x.requires_grad]
        if ends:
            torch.autograd.backward(ends, [torch.ones_like(x) for x in ends])

    in_threads(run)
    (group,) = groups.made.values()
    return group.sent


def parts_of(operator: Operator, graph: Graph, values: Values, cuts: tuple[Split, ...], at: int) -> list[torch.Tensor]:
    """A part's operands."""
    given = []
    for operand in operator.inputs:
        x, indices = values[operand.value].detach(), indices_of(operator, operand, cuts, (at,))
        part = x.flatten()[indices.flatten()].view(indices.shape)
        given.append(part.requires_grad_(graph.values[operand.value].differentiable))
    return given


def in_threads(run: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=run, args=(at,)) for at in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


WHOLE: dict[str, Callable[[], tuple[Model, Graph]]] = {
    **{name: lambda name=name: wrapped(name, *MODELS[name]()) for name in MODELS},
    "eager GPT": lambda: captured_model("eager_gpt.py:exact"),
    "eager GPT with dropout": lambda: captured_model("eager_gpt.py:tiny"),
}
if importlib.util.find_spec("transformers"):
    ZOO = ("gpt:tiny", "gpt:tiny,attention=eager,dropout=0.1", "gpt:tiny,dtype=bf16", "swin:tiny")
    WHOLE |= {spec: lambda spec=spec: captured_model(spec) for spec in ZOO}


def wrapped(name: str, module: torch.nn.Module, batch: Values, axes: dict[str, tuple[str, ...]]) -> tuple[Model, Graph]:
    model = Model(name, module.train(), (batch,), axes)
    return model, capture(model)


@pytest.mark.thinned(9)
@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_model_keeps_what_the_table_says(name: str) -> None:
    torch.manual_seed(0)
    model, graph = WHOLE[name]()
    given = outside(graph, model.module, model.batches[0])
    storage: dict[int, torch.UntypedStorage] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        storage[x.untyped_storage().data_ptr()] = x.untyped_storage()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        values = run_graph(graph, given)
    given_memory = {x.untyped_storage().data_ptr() for x in given.values()}
    made = {n: x.untyped_storage().data_ptr() for n, x in values.items() if n not in given}
    truth = {n for n, p in made.items() if p in storage and p not in given_memory}
    places = graph.storages
    calls = [(o, saved(o, graph)) for o in graph.operators]
    roots = {places[v].root for o, s in calls for v in s.values(o)}
    assert {
        n for n in made if places[n].root in roots and graph.values[places[n].root].origin is Origin.OPERATOR
    } == truth
    beside = sum(s.nbytes() for p, s in storage.items() if p not in given_memory and p not in made.values())
    assert sum(e.size_bytes for _, s in calls for e in s.extras) == beside
