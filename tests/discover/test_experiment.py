"""What experiments show of an operator: what can be split, and never more; and the rows that the command prints."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bench.fuzz.trial import try_plan
from ssdsl.discover import discover as discovery
from ssdsl.discover.discover import Discovered
from ssdsl.discover.experiment import FoundRule, experiment
from ssdsl.discover.row_text import SEVERAL, row_text, rows_text
from ssdsl.model.capture.call import CapturedCall, Tensor
from ssdsl.model.checks.check_capture import check_capture
from ssdsl.model.graph import Ref
from ssdsl.model.load.model import Model
from ssdsl.model.memory.saved import saved
from ssdsl.model.module_to_graph import capture, rewritten_calls
from ssdsl.model.observe import call, overwritable
from ssdsl.model.observe import saved as observe_saved
from ssdsl.model.ops import registry
from ssdsl.model.target import Target, target
from ssdsl.record import replace
from ssdsl.runtime.options import Training
from ssdsl.text.diagnostic import PlanError
from tests.captured import captured
from tests.cli.commands import call as call_command
from tests.discover import operators
from tests.preloaded import Preloaded

aten, own = torch.ops.aten, torch.ops.ssdsl_found
SPACE_AND_TIME = "mesh gpus(dp = 2)\nsplit model by batch into dp, m = 2\nassign model to gpus\n"
assert operators.count == 0


def found(target: Any, *arguments: Any) -> FoundRule:
    """What experiments with a call show; tensors among the arguments stand for their shapes and dtypes."""
    tensors: list[torch.Tensor] = []

    def given(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            tensors.append(item)
            return Ref(f"t{len(tensors)}")
        return tuple(map(given, item)) if isinstance(item, (tuple, list)) else item

    call = CapturedCall("call", "call", target, tuple(map(given, arguments)), {}, "", "", ())
    with torch.random.fork_rng():
        result = target(*(a.to("meta") if isinstance(a, torch.Tensor) else a for a in arguments))
    made = result if isinstance(result, (tuple, list)) else (result,)
    return experiment(call, [typed(t) for t in tensors], [typed(t) for t in made], False, 30.0)


def typed(tensor: torch.Tensor) -> Tensor:
    return Tensor(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


CALLS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "a b! -> a c!": (aten._fft_r2c.default, (ones(6, 8), [1], 0, True)),
    "a b! c! -> a b! c!, a": (aten.linalg_inv_ex.default, (ones(6, 4, 4),)),
    "a b c!, a d e! -> a b d": (aten._cdist_forward.default, (ones(4, 6, 5), ones(4, 7, 5), 2.0, None)),
    "a b c! d!, a e f g! -> a b e f": (
        aten.grid_sampler_2d.default,
        (ones(4, 3, 8, 8), ones(4, 5, 6, 2), 0, 0, False),
    ),
    "a!, b c -> b c": (aten.searchsorted.Tensor, (ones(8), ones(4, 6))),
    "a b, c! -> a b": (aten.bucketize.Tensor, (ones(4, 6), ones(8))),
    "a b! c! -> a d! e! f!": (aten.col2im.default, (ones(4, 12, 25), [6, 6], [2, 2], [1, 1], [0, 0], [1, 1])),
    "a -> b!": (aten.histc.default, (ones(64), 8, 0, 1)),
    "a! b -> b, b": (aten.kthvalue.default, (ones(8, 6), 3, 0)),
    "a! b! -> _": (aten.trace.default, (ones(8, 8),)),
    "a b, b c -> a c": (aten.mm.default, (ones(8, 8), ones(8, 8))),
    "a b, a -> b": (aten.einsum.default, ("nk,n->k", [ones(8, 8), ones(8)])),
    "a! b, c d -> c d b": (aten.embedding.default, (ones(6, 8), torch.zeros(5, 4, dtype=torch.int64))),
}


@pytest.mark.parametrize("signature", CALLS)
def test_what_is_found(signature: str) -> None:
    target, arguments = CALLS[signature]
    assert found(target, *arguments).signature == signature


@pytest.mark.parametrize("name", ["mixed", "nearly", "pairs", "single", "backward_mixes", "counted", "rare"])
def test_no_rows_are_cut_off(name: str) -> None:
    """Not by the forward, nor by the backward, nor nearly, nor for some numbers of rows, nor for most numbers."""
    result = found(getattr(own, name).default, ones(6, 8))
    first = result.signature.split()[0]
    assert first.endswith("!"), result


def test_why_it_is_whole_is_said() -> None:
    assert found(own.mixed.default, ones(6, 8)).why_whole == "no axis of it can be cut"
    assert found(own.counted.default, ones(6, 8)).why_whole == "it gives other results when it runs again"
    assert "it changes its inputs" in found(aten.relu_.default, ones(6, 8)).why_whole
    assert found(aten.add.Tensor, ones(3_000_000), 1.0).why_whole == ""


@pytest.mark.parametrize("rows", [4096, 100_000])
def test_a_large_call_is_tried_in_two_small_sizes(rows: int) -> None:
    assert found(aten.linalg_inv_ex.default, ones(rows, 4, 4)).signature == "a b! c! -> a b! c!, a"
    assert found(own.rows.default, ones(rows, 512)).signature == "a b! -> a b!"


def test_sizes_that_arguments_fix_do_not_shrink() -> None:
    assert found(aten._fft_c2r.default, ones(64, 2049).to(torch.complex64), [1], 2, 4096).signature == "a b! -> a c!"
    large = found(aten._fft_c2r.default, ones(200_000).to(torch.complex64), [0], 2, 399_998)
    assert large == FoundRule("a! -> b!", flows=(True,), why_whole="it is too large to try")


def test_what_it_is_linear_in() -> None:
    assert found(aten.trace.default, ones(8, 8)).linear_in == ("self",)
    assert found(aten.mm.default, ones(8, 6), ones(6, 4)).linear_in == ("self", "mat2")
    assert found(aten.add.Tensor, ones(8), ones(8)).linear_in == ("self other",)
    assert found(own.rows.default, ones(6, 8)).linear_in == ()


def test_gradients_that_do_not_flow() -> None:
    assert found(aten.linalg_inv_ex.default, ones(6, 4, 4)).flows == (True, False)
    assert found(aten.searchsorted.Tensor, ones(8), ones(4, 6)).flows == (False,)


# -- in models --------------------------------------------------------------------------------------------------------


class Between(nn.Module):
    """A function between two linears."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.function = nn.Linear(6, 8), nn.Linear(8, 5), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.function(self.first(x))).square().mean()


def model_of(function: Callable[[torch.Tensor], torch.Tensor]) -> Model:
    return Model("between", Between(function), ({"x": torch.randn(8, 6)},), {"x": ("batch", "features")})


def several(y: torch.Tensor) -> torch.Tensor:
    return own.rows(own.mixed(y)) * y.trace()


@pytest.fixture
def quick_worker(preloaded: Preloaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Experiments run in a process that has torch loaded."""
    monkeypatch.setattr("ssdsl.discover.discover.sys", preloaded)


@pytest.fixture
def rows() -> Iterator[Callable[[str], None]]:
    """Uses the rows of a text, as if it were a model's file."""

    def use(text: str) -> None:
        scope: dict[str, Any] = {}
        exec(text, scope)
        registry.use_rows("a test", scope["OPS"])

    yield use
    registry.use_rows("nothing", ())


def test_without_rows_they_are_computed_whole() -> None:
    model = model_of(several)
    outcome = try_plan(model, capture(model), SPACE_AND_TIME, Training(2, optimizer="sgd", lr=0.02))
    assert outcome.kind == "equal", outcome.text


def test_the_rows_that_are_printed(rows: Callable[[str], None]) -> None:
    model = model_of(several)
    calls = discovery.unknown_calls(before := rewritten_calls(model))
    assert [*calls] == ["ssdsl_found::mixed", "ssdsl_found::rows", "aten::trace"]
    tried = discovery.discover([(name, call) for name, alike in calls.items() for call in alike], before)
    text = rows_text(tried)
    assert text == ROWS
    rows(text)
    graph = capture(model)
    assert not any(o.row.unknown for o in graph.operators)
    outcome = try_plan(model, graph, SPACE_AND_TIME, Training(2, optimizer="sgd", lr=0.02))
    assert outcome.kind == "equal", outcome.text


ROWS = """\
import ssdsl

OPS = [
    # no axis of it can be cut
    ssdsl.Op("ssdsl_found::mixed", "a! b! -> a! b!", linear_in=("x",), module="tests.discover.operators"),
    ssdsl.Op("ssdsl_found::rows", "a b! -> a b!", module="tests.discover.operators"),
    # no axis of it can be cut
    ssdsl.Op("aten::trace", "a! b! -> _", linear_in=("self",)),
]"""


def test_a_call_that_differs_is_a_comment() -> None:
    call = CapturedCall("call", "call", own.rows.default, (), {}, "", "", ())
    one = Discovered("lib::scan", call, "lib", FoundRule("a b! -> a b!", flows=(True,)))
    other = replace(one, rule=FoundRule("a! b! -> a! b!", flows=(True,), why_whole="no axis of it can be cut"))
    assert rows_text([one, other]).splitlines()[3:-1] == [
        '    ssdsl.Op("lib::scan", "a b! -> a b!", module="lib"),',
        f"    # {SEVERAL}",
        "    # no axis of it can be cut",
        '    # ssdsl.Op("lib::scan", "a! b! -> a! b!", module="lib"),',
    ]


def test_a_mean_is_found(quick_worker: None) -> None:
    model, _ = captured("own_gradients.py:by_rows")
    registry.use_rows("no rows", ())
    calls = discovery.unknown_calls(before := rewritten_calls(model))
    (one,) = discovery.discover([(name, call) for name, (call,) in calls.items()], before)
    assert one.rule.signature == "a b c!, d! e!, a b -> _"
    assert row_text(one).endswith('contraction=True, mean="x.0 x.1", module="own_gradients"),')


def test_what_is_not_known_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an operator that does not run on tensors without numbers, autograd may keep everything."""
    real = call.run

    def run(target: Target, *given: Any) -> tuple[Any, ...]:
        if not target.name.startswith("aten"):
            raise NotImplementedError
        return real(target, *given)

    for module in (call, observe_saved, overwritable):
        monkeypatch.setattr(module, "run", run)
    graph = capture(model_of(lambda y: own.rows(y)))
    operator = next(o for o in graph.operators if o.row.unknown)
    kept_by = saved(operator, graph)
    assert (kept_by.inputs, kept_by.outputs) == ((0,), (0,))


@pytest.mark.slow
def test_an_operator_that_ends_the_process_is_whole() -> None:
    tensor = typed(ones(6, 8))
    targets = [target(f"ssdsl_found::{name}", "x") for name in ("breaks", "leaves", "rows")]
    jobs = [discovery.TrialJob(operators.__name__, each, (Ref("x"),), {}, (tensor,), (tensor,)) for each in targets]
    broken, left, fine = discovery._results(jobs)
    assert broken.signature == "a! b! -> a! b!" and "7" in broken.why_whole
    assert left.signature == "a! b! -> a! b!" and "early" in left.why_whole
    assert fine.signature == "a b! -> a b!"


def test_without_processes_nothing_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError("none left")

    monkeypatch.setattr(subprocess, "run", fail)
    before = rewritten_calls(model_of(lambda y: own.rows(y)))
    (one,) = discovery.discover([("rows", *discovery.unknown_calls(before)["ssdsl_found::rows"])], before)
    assert one.rule.why_whole == "no process could be started: none left"


def test_the_command(package: Path, tmp_path: Path, quick_worker: None) -> None:
    model = f"{package}/model.py:unknown"
    done = call_command("discover", "--model", model, "unknown", folder=tmp_path)
    row = 'ssdsl.Op("ssdsl_test_lib::unknown", "a b -> a b", linear_in=("x",), module="ssdsl_test_lib"),'
    assert done.stdout.splitlines() == ["import ssdsl", "", "OPS = [", f"    {row}", "]"], done.stderr
    wrong = call_command("discover", "--model", model, "nothing", folder=tmp_path)
    assert wrong.returncode == 2 and "`ssdsl_test_lib::unknown`" in wrong.stderr
    none = call_command("discover", "--model", "gpt:tiny,layers=1", folder=tmp_path)
    assert not none.stdout and "a row for every operator of gpt" in none.stderr


def test_an_operator_that_counts_its_calls_is_refused_before_it_trains() -> None:
    model = model_of(lambda y: own.counted(y))
    with pytest.raises(PlanError) as caught:
        check_capture(model, capture(model))
    assert [d.code for d in caught.value.diagnostics] == ["E0346"]
    assert "the module by itself gives" in str(caught.value.diagnostics[0].text("{reason}"))
