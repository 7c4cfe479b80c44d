"""What torch.export drops or changes without a word: refused by name and line, or captured as it is."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from ssdsl.model.checks import errors
from ssdsl.model.checks.check_capture import check_capture
from ssdsl.model.graph import Graph
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture
from ssdsl.model.ops.op import Op
from ssdsl.model.ops.registry import use_rows
from ssdsl.model.target import TorchWord
from ssdsl.text.diagnostic import REGISTRY, PlanError
from ssdsl.text.render import render
from tests.captured import captured
from tests.models import dropped
from tests.models.dropped import Net

ERRORS = Path(__file__).parent.parent.parent / "errors"
Forward = Callable[[Net, torch.Tensor], torch.Tensor]


def model_of(compute: Forward, prepare: Callable[[Net], object] = lambda net: None) -> Model:
    net = Net(compute)
    prepare(net)
    return Model("net", net, ({"x": torch.randn(2, 4, generator=torch.Generator().manual_seed(1))},), AXES)


def checked(model: Model) -> Graph:
    """The graph of a model that computes what the module does, and that leaves the module as it was."""
    before = {n: t.clone() for n, t in model.module.state_dict().items()}
    attributes = dict(vars(model.module))
    graph = capture(model)
    check_capture(model, graph)
    assert vars(model.module) == attributes
    assert all(torch.equal(t, before[n]) for n, t in model.module.state_dict().items())
    return graph


AXES: dict[str, tuple[str, ...]] = {"x": ("batch", "width")}
WRONG: dict[str, dict[str, Forward]] = {
    "E0340": {
        "a misspelt name": dropped.misspells,
        "wrong arguments": dropped.calls_wrongly,
        "wrong shapes": dropped.mismatches,
        "a backward that fails": dropped.uses_up_its_graph,
    },
    "E0341": {
        "a class inside a function": dropped.reverses_by_a_class_of_its_own,
        "straight-through": dropped.rounds_by_a_class_of_its_own,
        "a function among its arguments": dropped.reverses_a_function,
    },
    "E0342": {
        "of a tensor": dropped.hooks_a_tensor,
        "of saved tensors": dropped.hooks_saved_tensors,
        "backward": dropped.calls_backward,
    },
    "E0343": {
        "an input": dropped.changes_an_input,
        "a weight": dropped.changes_a_weight,
        "weights of a teacher": dropped.averages_a_teacher,
        "a weight's data": dropped.changes_a_weights_data,
        "data assigned": dropped.assigns_data,
        "an embedding": dropped.limits_an_embedding,
        "detached": dropped.changes_what_is_detached,
        "without gradient": dropped.changes_without_gradient,
        "an attribute": dropped.changes_an_attribute,
        "a buffer by an operator that hides it": dropped.changes_a_buffer_unseen,
        "memory": dropped.shares_memory,
    },
    "E0344": {
        "a counter": dropped.counts,
        "a list": dropped.collects,
        "a state": dropped.carries_on,
        "a buffer replaced": dropped.replaces_a_buffer,
        "a weight replaced": dropped.replaces_a_weight,
        "frozen": dropped.freezes,
        "drawn": dropped.draws,
        "drawn by numpy": dropped.draws_from_numpy,
    },
    "E0345": {"on another device": dropped.casts_elsewhere},
    "E0346": {
        "the clock": dropped.reads_the_clock,
        "captured": dropped.asks_whether_it_is_captured,
        "a buffer": dropped.counts_where_it_is_not_captured,
        "zeros": dropped.multiplies_by_zero_where_it_is_not_captured,
    },
    "E0351": {
        "a reentrant checkpoint": dropped.checkpoints_reentrantly,
        "a reversible block": dropped.reverses_blocks,
    },
    "E0352": {"marked dirty": dropped.changes_an_argument},
}
HOOKS: dict[str, Callable[[Net], object]] = {
    "a module": lambda net: net.fc.register_full_backward_hook(lambda module, given, coming: None),
    "before a module": lambda net: net.register_full_backward_pre_hook(lambda module, coming: None),
    "a weight": lambda net: net.fc.weight.register_hook(lambda gradient: gradient * 3),
    "a gradient": lambda net: net.fc.weight.register_post_accumulate_grad_hook(lambda weight: None),
}


@pytest.fixture
def rows() -> Iterator[None]:
    """A row for an operator that changes a buffer, so that it is not taken apart."""
    row = Op("ssdsl_dropped::tracked", "batch width, _ -> batch width", module=dropped.__name__)
    use_rows("dropped.py", (row,))
    yield
    use_rows("nothing", ())


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize("code", WRONG)
def test_what_would_be_lost_is_refused(code: str, golden: Callable[[Path, str], None]) -> None:
    texts = []
    cases = [(case, model_of(compute)) for case, compute in WRONG[code].items()]
    if code == "E0342":
        cases += [(f"of {case}", model_of(dropped.plain, prepare)) for case, prepare in HOOKS.items()]
    for case, model in cases:
        with pytest.raises(PlanError) as caught:
            checked(model)
        assert {d.code for d in caught.value.diagnostics} == {code}, case
        texts += [f"# {case}", *map(render, caught.value.diagnostics), ""]
    text = "\n".join(texts)
    if code == "E0346":  # the time is another in each run
        text = re.sub(r"(gives|module|then) \d\S*\d", r"\1 1.5", text)
    golden(ERRORS / f"{code}.err", text)


def test_each_has_its_cases_and_an_explanation() -> None:
    own = {code for code, cls in REGISTRY.items() if cls.__module__ == errors.__name__}
    assert own == set(WRONG) and all(REGISTRY[code].__doc__ for code in own)


EXACT: tuple[Forward, ...] = (
    dropped.squares,
    dropped.reverses,
    dropped.clips,
    dropped.takes,
    dropped.reverses_in_autocast,
    dropped.checkpoints,
    dropped.changes_buffers,
    dropped.keeps_the_last,
    dropped.fills_a_cache,
    dropped.reads_data,
    dropped.takes_gradients,
    dropped.evaluates_a_part,
    dropped.casts,
)


@pytest.mark.parametrize("compute", EXACT, ids=lambda f: str(f.__name__))
def test_what_does_no_harm_is_captured(compute: Forward) -> None:
    checked(model_of(compute))


def test_forward_hooks_are_captured() -> None:
    def prepare(net: Net) -> None:
        net.fc.register_forward_hook(lambda module, given, result: result * 3)
        net.trunk.register_forward_pre_hook(lambda module, given: (given[0] - 1,))
        nn.utils.spectral_norm(net.trunk[0])

    graph = checked(model_of(dropped.plain, prepare))
    assert set(graph.updates) == {"trunk.0.weight_u", "trunk.0.weight_v"}


def test_hooks_of_all_modules_are_refused() -> None:
    handle = torch_module.register_module_forward_hook(lambda module, given, result: result * 2)
    try:
        with pytest.raises(PlanError, match="E0342"):
            capture(model_of(dropped.plain))
    finally:
        handle.remove()


def test_a_model_without_numbers_is_watched_as_well() -> None:
    def meta(compute: Forward) -> Model:
        model = model_of(compute)
        model.module.to("meta")
        model.module.plain = model.module.scale = torch.ones(4, device="meta")
        return Model("net", model.module, ({"x": torch.randn(2, 4, device="meta")},), AXES)

    for compute in (dropped.counts, dropped.changes_a_weight, dropped.hooks_a_tensor, dropped.misspells):
        with pytest.raises(PlanError, match="E034"):
            capture(meta(compute))
    capture(meta(dropped.squares))
    with pytest.raises(PlanError, match="E0330"):
        capture(meta(dropped.finds_rows))  # which fails on its own as well, where nothing has numbers
    capture(meta(dropped.checks_a_mask_of_its_own))  # of which a call without numbers knows nothing


def test_operators_of_an_autocast_have_their_modules_and_casts() -> None:
    graph = capture(model_of(dropped.casts))
    paths = {(o.kind, o.path) for o in graph.operators}
    assert {("linear", "fc"), ("linear", "trunk.0"), ("relu", "trunk.1"), ("_to_copy", "fc")} <= paths
    dtypes = {o.path: graph.values[o.outputs[0].value].dtype for o in graph.operators if o.kind == "linear"}
    assert dtypes == {"fc": "bfloat16", "trunk.0": "bfloat16", "fc#1": "float32", "fc#2": "bfloat16"}


def test_a_conversion_takes_the_device_of_what_it_converts() -> None:
    def compute(net: Net, x: torch.Tensor) -> torch.Tensor:
        return (net.fc(x) * (x > 0).to(x.device, torch.int32)).sum()

    (converted,) = (o for o in checked(model_of(compute)).operators if o.kind == "_to_copy")
    assert dict(converted.kwargs) == {"dtype": TorchWord("dtype", "int32")}


def test_capture_leaves_random_numbers_alone() -> None:
    states = torch.get_rng_state(), np.random.get_state()[1].tobytes()  # type: ignore[index, union-attr]
    checked(model_of(dropped.keeps_the_last))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tobytes() == states[1]  # type: ignore[index, union-attr]


@pytest.mark.thinned(6)
@pytest.mark.parametrize("spec", ["gpt:tiny", "swin", "vgg", "unet3d", "moe_gpt"])
def test_the_zoo_computes_what_its_graph_does(spec: str) -> None:
    check_capture(*captured(spec))
