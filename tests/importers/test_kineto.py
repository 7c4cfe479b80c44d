"""Costs from traces of PyTorch's profiler: recorded here on a processor, and written as a GPU's are.

No GPU is here, so that the events of one are written by hand, as the profiler writes them: a launch and its kernel have
one `correlation`, and a kernel of NCCL has the words of its collective.
"""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.checkpoint import checkpoint

from ssdsl.importers.errors import TraceUnreadable
from ssdsl.importers.foreign import Foreign
from ssdsl.importers.kineto import ReadTrace, read, read_trace, recognises
from ssdsl.importers.recognise import foreign, imported
from ssdsl.simulate.profile.profile import Curve
from ssdsl.simulate.profile.read_costs import read_costs
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render
from tests.cli.commands import call

ERRORS = Path(__file__).parent.parent / "errors"
NET = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(inplace=True), nn.Linear(32, 4))

    def forward(self, x):
        return self.net(x).square().mean()

def net():
    return Net(), {"x": torch.randn(8, 16)}, {"x": ("batch", "feature")}
"""
Events = list[dict[str, Any]]
STEPS = 3


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(inplace=True), nn.Linear(32, 4))


def recorded(path: Path, forward: Callable[[nn.Module, torch.Tensor], torch.Tensor], shapes: bool = True) -> Path:
    """A trace of a plain loop of PyTorch."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
    plan = schedule(wait=0, warmup=1, active=STEPS, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=shapes, schedule=plan) as prof:
        for _ in range(1 + STEPS):
            forward(net, torch.ones(8, 16)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
    prof.export_chrome_trace(str(path))
    return path


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("trace") / "trace.json", lambda net, x: net(x))


def numbers(found: ReadTrace) -> dict[str, str]:
    """What became of each kind of event, by its name."""
    return {i.written.rpartition(" (")[0]: i.becomes for i in (*found.said, *found.silent, *found.refused)}


def events_of(path: Path) -> Events:
    return [e for e in json.loads(path.read_text())["traceEvents"] if e.get("ph") == "X"]


def count(found: ReadTrace, kind: str) -> int:
    (item,) = (i for i in (*found.said, *found.silent, *found.refused) if i.written.startswith(f"{kind} ("))
    return int(item.written.rpartition("(")[2].rstrip(")"))


# -- traces of this machine --------------------------------------------------------------------------------------------


def test_calls_have_shapes_and_times(plain: Path) -> None:
    found = read_trace(plain)
    calls = found.profile.calls
    linear = calls["aten::linear of 8x16:float32, 32x16:float32, 32:float32"]
    product = calls["aten::addmm of 32:float32, 8x16:float32, 16x32:float32"]
    assert 0 < product["forward"] <= linear["forward"] and 0 < product["backward"] <= linear["backward"]
    assert "aten::relu_ of 8x32:float32" in calls
    assert found.profile.partial and found.profile.machine.device == "cpu" and len(found.step_us) == STEPS


def test_all_time_is_in_one_of_the_lists(plain: Path) -> None:
    """Outermost operators, nodes of autograd and the optimizer, counted another way."""
    found, events = read_trace(plain), events_of(plain)
    nodes = [e for e in events if e["name"].startswith("autograd::engine::evaluate_function")]
    steps = [e for e in events if e["name"].startswith("Optimizer.step")]
    assert count(found, "Optimizer.step") == len(steps) == STEPS
    gradients = [e for e in nodes if "AccumulateGrad" in e["name"]]
    assert count(found, "torch::autograd::AccumulateGrad") == len(gradients) == 4 * STEPS

    def is_inside(event: dict[str, Any], others: Events) -> bool:
        ends = event["ts"] + event["dur"]
        return any(o is not event and o["ts"] <= event["ts"] and ends <= o["ts"] + o["dur"] for o in others)

    operators = [e for e in events if e["name"].startswith("aten::")]
    zeroed = [e for e in events if e["name"].startswith("Optimizer.zero_grad")]
    outermost = [e for e in operators if not is_inside(e, [*operators, *nodes, *steps])]
    assert not any(is_inside(e, zeroed) for e in outermost)  # gradients become None
    forward = sum(e["dur"] for e in outermost)
    backward = sum(e["dur"] for e in nodes) - sum(e["dur"] for e in gradients)
    from ssdsl.importers.kineto import _Reading
    from ssdsl.importers.trace_events import trace_of

    counted = _Reading(trace_of("trace.json", plain.read_bytes()), "trace.json").operators.values()
    assert sum(c.time_us for c in counted) == pytest.approx(forward)
    assert sum(c.back_us for c in counted) == pytest.approx(backward)
    assert sum(c.events for c in counted) == len(outermost)


def test_every_kind_of_event_is_in_one_list(plain: Path) -> None:
    found = read_trace(plain)
    names = numbers(found)
    assert {"aten::linear", "aten::relu_", "ProfilerStep", "Optimizer.step", "metadata", "fwdbwd"} <= names.keys()
    items = [*found.said, *found.silent, *found.refused]
    assert len({item.written for item in items}) == len(items)
    assert "cluster's rates" in names["Optimizer.step"] and names["ProfilerStep"].startswith("a check: ")


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_computed_again_is_no_backward(tmp_path: Path, reentrant: bool) -> None:
    """In a backward that computes forward again, forward calls are those of forward, and nodes inside count once."""

    def forward(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        again = checkpoint(net, x.requires_grad_(), use_reentrant=reentrant)
        assert isinstance(again, torch.Tensor)
        return again

    found = read_trace(recorded(tmp_path / "again.json", forward))
    assert count(found, "aten::linear") == 2 * 2 * STEPS
    times = found.profile.calls["aten::linear of 8x16:float32, 32x16:float32, 32:float32"]
    assert times["backward"] > 0
    events = events_of(tmp_path / "again.json")
    nodes = {e["name"]: e["dur"] for e in events if e["name"].endswith("CheckpointFunctionBackward")}
    assert bool(nodes) is reentrant and all(times["backward"] * 1e6 < dur for dur in nodes.values())


def test_a_plan_takes_the_times_of_a_trace(tmp_path: Path, plain: Path) -> None:
    """The whole way: import a trace of a plain script, simulate a plan with its costs."""
    (tmp_path / "mynet.py").write_text(NET)
    done = call("import", str(plain), "--out", "costs.json", folder=tmp_path)
    assert done.returncode == 0 and "is a trace of PyTorch's profiler on cpu, of 3 steps" in done.stdout
    words = "simulate data_parallel --model mynet.py:net --set D=1 --costs costs.json --json".split()
    done = call(*words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    measured = report["measured"]
    assert measured["origin"] == "trace trace.json, on cpu"
    calls = read_costs(tmp_path / "costs.json").profile
    assert calls is not None
    both = (
        "aten::linear of 8x16:float32, 32x16:float32, 32:float32",
        "aten::linear of 8x32:float32, 4x32:float32, 4:float32",
    )
    products = sum(sum(calls.calls[key].values()) for key in both)
    known = measured["share"] * measured["computing_s"]
    assert known >= products > 0 and not any("linear" in lack["call"] for lack in measured["lacking"])
    done = call(*words[:-1], "--set", "D=2", folder=tmp_path)
    assert done.returncode == 0 and "by the rates of `laptop`" in done.stdout
    done = call(*"search data_parallel --model mynet.py:net --devices 1..2 --costs costs.json".split(), folder=tmp_path)
    assert done.returncode == 1 and "E0656" in done.stderr


# -- as of a GPU -------------------------------------------------------------------------------------------------------


def event(name: str, ts: float, dur: float, cat: str = "cpu_op", tid: int = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": dur, "args": args}


def launch(ts: float, number: int, us: float, kernel: str = "gemm", tid: int = 1, **args: Any) -> Events:
    """A launch, and its kernel, which runs much later."""
    return [
        event("cudaLaunchKernel", ts, 1, "cuda_runtime", tid, correlation=number),
        event(kernel, 10_000 + 100 * number, us, "kernel", 99, correlation=number, stream=7, **args),
    ]


def operator(name: str, ts: float, dur: float, dims: Any, types: Any, tid: int = 1, **more: Any) -> dict[str, Any]:
    args = {"Input Dims": dims, "Input type": types, "Concrete Inputs": [""] * len(types), **more}
    return event(name, ts, dur, "cpu_op", tid, **args)


def gpu_events() -> Events:
    x, w, b = [8, 16], [32, 16], [32]
    half = ["c10::BFloat16"] * 3
    seq = {"Fwd thread id": 0}
    node = "autograd::engine::evaluate_function: "
    collective = {"Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "BFloat16"}
    collective |= {"Group size": 8}
    return [
        event("ProfilerStep#3", 0, 1000, "user_annotation"),
        operator("aten::linear", 10, 50, [x, w, b], half, **{**seq, "Sequence number": 4}),
        operator("aten::t", 12, 5, [w], half[:1], **{**seq, "Sequence number": 4}),
        operator("aten::addmm", 20, 30, [b, x, [16, 32]], half, **{**seq, "Sequence number": 5}),
        *launch(25, 1, 40.0),
        *launch(28, 2, 2.0, "bias"),
        operator(
            "aten::cat", 70, 5, [[[8, 16], [8, 16]], []], ["TensorList", "Scalar"], **{**seq, "Sequence number": 6}
        ),
        *launch(71, 3, 6.0, "CatArrayBatchedCopy"),
        event(f"{node}AddmmBackward0", 100, 60, tid=2, **{"Sequence number": 5, "Fwd thread id": 1}),
        operator("aten::mm", 110, 10, [[32, 8], [8, 16]], half[:2], tid=2),
        *launch(112, 4, 70.0, tid=2),
        event(f"{node}TBackward0", 170, 4, tid=2, **{"Sequence number": 4, "Fwd thread id": 1}),
        event(f"{node}torch::autograd::AccumulateGrad", 180, 20, tid=2),
        *launch(182, 5, 3.0, "add", tid=2),
        event("c10d::allreduce_", 186, 12, tid=2),
        event("record_param_comms", 188, 8, tid=2, **collective),
        event("nccl:all_reduce", 189, 4, "user_annotation", tid=2),
        *launch(190, 6, 500.0, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", tid=2, **collective),
        event("Optimizer.step#AdamW.step", 300, 50, "user_annotation"),
        *launch(310, 7, 9.0, "multi_tensor_apply_kernel"),
        event("my_own_kernel", 20_000, 11.0, "kernel", 99, correlation=77, stream=7),
        *launch(400, 8, 5.0, "triton_mine"),
        event("forward", 5, 90, "python_function"),
        {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "python"}},
    ]


def gpu_trace(events: Events) -> bytes:
    device = {"id": 0, "name": "NVIDIA H100 80GB HBM3"}
    info = {"backend": "nccl", "rank": 0, "world_size": 8}
    trace = {"schemaVersion": 1, "deviceProperties": [device], "distributedInfo": info, "traceEvents": events}
    return json.dumps(trace).encode()


@pytest.fixture
def gpu(tmp_path: Path) -> ReadTrace:
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(gpu_trace(gpu_events())))
    return read_trace(path)


def test_a_call_takes_what_its_kernels_take(gpu: ReadTrace) -> None:
    calls, us = gpu.profile.calls, 1e-6
    linear = calls["aten::linear of 8x16:bfloat16, 32x16:bfloat16, 32:bfloat16"]
    product = calls["aten::addmm of 32:bfloat16, 8x16:bfloat16, 16x32:bfloat16"]
    assert linear == product == {"forward": pytest.approx(42 * us), "backward": pytest.approx(70 * us)}
    assert calls["aten::t of 32x16:bfloat16"] == {"forward": 0.0, "backward": 0.0}
    assert calls["aten::cat of (8x16, 8x16)"] == {"forward": pytest.approx(6 * us)}
    assert not any("aten::mm" in key for key in calls)  # a part of a backward
    assert gpu.profile.machine.device == "NVIDIA H100 80GB HBM3" and gpu.profile.machine.processes == 8


def test_collectives_are_points_of_the_network(gpu: ReadTrace) -> None:
    curve = Curve(((2000, 500e-6),))
    assert gpu.profile.network == {("all_reduce", 8): curve, ("all_reduce in a task", 8): curve}
    assert numbers(gpu)["all_reduce"].startswith("network `all_reduce among 8`, 1 size: 0.5 ms")


def test_what_is_not_taken_has_its_reason_and_its_share(gpu: ReadTrace) -> None:
    refused = {i.written: i.becomes for i in gpu.refused}
    whole = 42 + 70 + 6 + 3 + 500 + 9 + 11 + 5
    assert refused["kernel (1)"].endswith(f"0.011 ms, {11 / whole:.1%}")
    assert refused["cuda_runtime (1)"] == f"kernels that no operator of PyTorch launched: 0.005 ms, {5 / whole:.1%}"
    assert refused["Optimizer.step (1)"].endswith(f"0.009 ms, {9 / whole:.1%}")
    assert refused["torch::autograd::AccumulateGrad (1)"].endswith(f"0.003 ms, {3 / whole:.1%}")
    assert {"python_function (1)", "metadata (1)"} <= {i.written for i in gpu.silent}


def test_the_median_of_like_calls_counts(tmp_path: Path) -> None:
    calls = [operator("aten::relu", 100.0 * n, 50, [[4]], ["float"]) for n in range(3)]
    kernels = [e for n, us in enumerate((1.0, 3.0, 900.0)) for e in launch(100.0 * n + 1, n, us)]
    path = tmp_path / "t.json"
    path.write_bytes(gpu_trace([*calls, *kernels]))
    assert read_trace(path).profile.calls == {"aten::relu of 4:float32": {"forward": pytest.approx(3e-6)}}


def test_compiled_regions_are_refused(tmp_path: Path) -> None:
    region = event("Torch-Compiled Region: 0/0", 0, 50)
    inside = operator("aten::mm", 5, 10, [[4, 4], [4, 4]], ["float", "float"])
    outside = operator("aten::relu", 60, 5, [[4]], ["float"])
    path = tmp_path / "t.json"
    path.write_bytes(gpu_trace([region, inside, *launch(6, 1, 7.0), outside, *launch(61, 2, 1.0)]))
    found = read_trace(path)
    assert [*found.profile.calls] == ["aten::relu of 4:float32"]
    assert any("torch.compile" in item.becomes and "87.5%" in item.becomes for item in found.refused)


def test_collectives_of_unknown_size_or_group_are_refused(tmp_path: Path) -> None:
    known = {"Collective name": "_allgather_base", "In msg nelems": 10, "Out msg nelems": 40, "Group size": 4}
    found = []
    for n, args in enumerate(
        ({**known, "dtype": "Float"}, known, {**known, "Group size": None}, {"Collective name": "x"})
    ):
        found += [event("record_param_comms", 100.0 * n, 20, **args), *launch(100.0 * n + 1, n, 5.0, "ncclKernel")]
    path = tmp_path / "t.json"
    path.write_bytes(gpu_trace([operator("aten::relu", 900, 5, [[4]], ["float"]), *found]))
    trace = read_trace(path)
    assert trace.profile.network["all_gather", 4] == Curve(((160, 5e-6),))
    reasons = "\n".join(item.becomes for item in trace.refused)
    assert "size of its tensor" in reasons and "number of its ranks" in reasons and "no collective of a plan" in reasons


# -- what is no trace --------------------------------------------------------------------------------------------------

NOTHING = gpu_trace([event("ProfilerStep#1", 0, 5, "user_annotation")])
WRONG = {
    "an empty file": b"",
    "no JSON": b"hello",
    "JSON of another kind": b'{"operators": {}}',
    "events that are none": b'{"traceEvents": [1]}',
    "no events": b'{"traceEvents": []}',
    "an event without a time": b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a"}]}',
    "truncated": gpu_trace(gpu_events())[:-40],
    "truncated in a text": gpu_trace(gpu_events())[:300],
    "truncated and compressed": gzip.compress(gpu_trace(gpu_events()))[:-20],
    "no shapes": gpu_trace([event("aten::relu", 0, 5)]),
    "shapes of no operator": gpu_trace([event("Mine", 0, 5, **{"Input Dims": [[1]], "Input type": ["float"]})]),
    "steps alone": NOTHING,
}


def test_wrong_files(golden: Callable[[Path, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cases = []
    for name, content in WRONG.items():
        Path("trace.json").write_bytes(content)
        with pytest.raises(PlanError) as raised:
            read_trace(Path("trace.json"))
        (found,) = raised.value.diagnostics
        assert isinstance(found, TraceUnreadable)
        cases.append(f"# {name}\n{render(found)}")
    golden(ERRORS / "E0709.err", "\n\n".join(cases) + "\n")


def test_a_trace_without_shapes_says_so(tmp_path: Path) -> None:
    path = recorded(tmp_path / "t.json", lambda net, x: net(x), shapes=False)
    with pytest.raises(PlanError, match="without the shapes"):
        read_trace(path)


def test_a_trace_is_recognised(plain: Path, tmp_path: Path) -> None:
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert recognises(foreign(str(plain))) and recognises(foreign(str(packed)))
    assert not recognises(Foreign("mesh gpus(dp = 2)", "mesh gpus(dp = 2)"))
    found = imported(str(packed))
    assert not found.is_plan and found.text == read(foreign(str(packed))).text and found.model is None
