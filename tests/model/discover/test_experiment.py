"""What experiments show of an operator: what can be split, and never more."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bench.fuzz.trial import try_plan
from ssdsl.compile import compile_plan
from ssdsl.model.capture.call import CapturedCall, Tensor
from ssdsl.model.discover import discover as discovery
from ssdsl.model.discover import rule_cache
from ssdsl.model.discover.experiment import experiment
from ssdsl.model.discover.found import FoundRule
from ssdsl.model.graph import Graph, Ref
from ssdsl.model.load.model import Model
from ssdsl.model.memory.saved import saved
from ssdsl.model.module_to_graph import capture
from ssdsl.model.observe import call, overwritable
from ssdsl.model.observe import saved as observe_saved
from ssdsl.model.target import Target, target
from ssdsl.runtime.options import Training
from ssdsl.show.tables.operators import operators_view
from ssdsl.show.view import as_json
from tests.model.discover import operators

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
    return experiment(call, [typed(t) for t in tensors], [typed(t) for t in made], False, 30.0)[0]


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
    assert found(own.counted.default, ones(6, 8)).unsteady
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


def model_of(function: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Model, Graph]:
    model = Model("between", Between(function), ({"x": torch.randn(8, 6)},), {"x": ("batch", "features")})
    return model, capture(model)


def several(y: torch.Tensor) -> torch.Tensor:
    """One process for all of them."""
    y = torch.fft.irfft(torch.fft.rfft(y)) + torch.cdist(y, torch.eye(8))
    y = y + F.grid_sample(y.reshape(8, 1, 2, 4), torch.tanh(y).reshape(8, 2, 2, 2), align_corners=False).repeat(
        1, 2, 1, 1
    ).flatten(1)
    return own.rows(own.mixed(y)) * y.trace()


def test_equal_in_space_and_time() -> None:
    outcome = try_plan(*model_of(several), SPACE_AND_TIME, Training(2, optimizer="sgd", lr=0.02))
    assert outcome.kind == "equal", outcome.text


def test_what_was_found_is_shown_and_believed(tmp_path: Path) -> None:
    _, graph = model_of(lambda y: own.rows(y))
    path = tmp_path / "plan.ssp"
    path.write_text(SPACE_AND_TIME)
    compiled = compile_plan(path, graph, {})
    (shown,) = [r["experiment"] for r in as_json(operators_view(compiled.plan)) if r["experiment"]]
    assert shown == "a b! -> a b!"
    assert compiled.proof.experiments == 1 and "the rules of 1 operators were found by experiment" in str(
        compiled.proof
    )
    operator = next(o for o in graph.operators if o.found is not None)
    assert operator.found is not None and operator.found.module == "tests.model.discover.operators"
    assert saved(operator, graph).inputs == (0,)


def test_what_is_not_known_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an operator that does not run on tensors without numbers, autograd may keep everything."""
    real = call.run

    def run(target: Target, *given: Any) -> tuple[Any, ...]:
        if not target.name.startswith("aten"):
            raise NotImplementedError
        return real(target, *given)

    for module in (call, observe_saved, overwritable):
        monkeypatch.setattr(module, "run", run)
    _, graph = model_of(lambda y: own.rows(y))
    operator = next(o for o in graph.operators if o.found is not None)
    kept_by = saved(operator, graph)
    assert (kept_by.inputs, kept_by.outputs) == ((0,), (0,))


@pytest.mark.slow
def test_an_operator_that_ends_the_process_is_whole() -> None:
    tensor = typed(ones(6, 8))
    targets = [target(f"ssdsl_found::{name}", "x") for name in ("breaks", "leaves", "rows")]
    jobs = [discovery.TrialJob(operators.__name__, each, (Ref("x"),), {}, (tensor,), (tensor,)) for each in targets]
    (broken, is_final), (left, _), (fine, _) = discovery._results(jobs)
    assert broken.signature == "a! b! -> a! b!" and "7" in broken.why_whole and not is_final
    assert left.signature == "a! b! -> a! b!" and "early" in left.why_whole
    assert fine.signature == "a b! -> a b!"


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(rule_cache, "_in_memory", {})
    return tmp_path


def test_what_was_found_is_kept(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = FoundRule("a b! -> a b!", flows=(True,))
    started = []
    monkeypatch.setattr(discovery, "_run", lambda jobs: (started.append(jobs), ([(result, True)] * len(jobs), ""))[1])
    model_of(lambda y: own.rows(y))
    monkeypatch.setattr(rule_cache, "_in_memory", {})  # as in another process
    _, graph = model_of(lambda y: own.rows(own.rows(y)))
    assert len(started) == 1, "equal calls are one experiment, now and later"
    assert [o.found.signature for o in graph.operators if o.found] == ["a b! -> a b!"] * 2
    (file,) = rule_cache.folder().iterdir()
    assert file.is_relative_to(empty_cache)
    _, found = json.loads(file.read_text())
    file.write_text(json.dumps(["of another implementation", found]))
    monkeypatch.setattr(rule_cache, "_in_memory", {})
    model_of(lambda y: own.rows(y))
    assert len(started) == 2, "what another implementation did is not believed"


def test_without_processes_nothing_is_split(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError("none left")

    monkeypatch.setattr(subprocess, "run", fail)
    _, graph = model_of(lambda y: own.rows(y))
    (result,) = [o.found for o in graph.operators if o.found]
    assert result.why_whole == "no process could be started: none left"
    assert not rule_cache.folder().exists(), "another time it may be different"
