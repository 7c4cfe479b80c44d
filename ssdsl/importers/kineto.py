"""Costs from a trace of PyTorch's profiler, of any training script: a partial profile for `--costs`.

A forward call is known by torch's operator and by the shapes and types of its tensors (`call_key.py`). All levels are
taken: `aten::linear` and the `aten::addmm` inside of it, as a graph may have either. A node of autograd has the number
of the forward call that made it (`Sequence number`), so its backward is that call's, and those of the calls around it:

    aten::linear             Sequence number 4
      aten::t                Sequence number 4
      aten::addmm            Sequence number 5
    AddmmBackward0           Sequence number 5   the backward of aten::addmm and of aten::linear
    TBackward0               Sequence number 4   the backward of aten::t and of aten::linear: the last call that has 4

Times are medians over all calls alike.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from ssdsl.importers.errors import TraceUnreadable
from ssdsl.importers.foreign import Foreign
from ssdsl.importers.imported import Imported, Item
from ssdsl.importers.trace_events import LAUNCHES, TraceEvent, TraceFile, trace_of
from ssdsl.lang.errors.files import FileUnreadable
from ssdsl.record import Record
from ssdsl.simulate.profile.call_key import Tensor, call_key
from ssdsl.simulate.profile.costs_json import ProfileJson, encoded
from ssdsl.simulate.profile.partly_profiled import PROCESSOR
from ssdsl.simulate.profile.profile import IN_A_TASK, Curve, Profile, ProfiledMachine
from ssdsl.text.diagnostic import PlanError

NODE = "autograd::engine::evaluate_function: "
ACCUMULATES = "torch::autograd::AccumulateGrad"
OPTIMIZER = "Optimizer.step"
STEP = "ProfilerStep"
COMPILED = ("Torch-Compiled Region", "CompiledFunction", "## Call CompiledFxGraph", "triton")
NO_OPERATORS = (
    "autograd::",
    "torch::autograd::",
    "c10d::",
    "_c10d_functional::",
    "torch::distributed",
    "torch.distributed",
    "profiler::",
)
GROUPED = ("nccl:", "gloo:", "record_param_comms", "c10d::", "_c10d_functional::")
TYPES = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
    "long int": "int64",
    "long": "int64",
    "long long": "int64",
    "int": "int32",
    "short": "int16",
    "short int": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
}
SIZES = {
    "float": 4,
    "double": 8,
    "half": 2,
    "c10::half": 2,
    "bfloat16": 2,
    "c10::bfloat16": 2,
    "long": 8,
    "long int": 8,
}
SIZES |= {
    "int": 4,
    "short": 2,
    "char": 1,
    "byte": 1,
    "bool": 1,
    "signed char": 1,
    "unsigned char": 1,
    "float8_e4m3fn": 1,
}
COLLECTIVES = {  # by the profiler's words: ours, and whether the result is the whole tensor
    "allreduce": ("all_reduce", False),
    "all_reduce": ("all_reduce", False),
    "allreduce_coalesced": ("all_reduce", False),
    "allgather": ("all_gather", True),
    "all_gather": ("all_gather", True),
    "_allgather_base": ("all_gather", True),
    "all_gather_into_tensor": ("all_gather", True),
    "all_gather_into_tensor_coalesced": ("all_gather", True),
    "reduce_scatter": ("reduce_scatter", False),
    "_reduce_scatter_base": ("reduce_scatter", False),
    "reduce_scatter_tensor": ("reduce_scatter", False),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", False),
    "all_to_all": ("all_to_all", False),
    "all_to_allv": ("all_to_all", False),
    "alltoall": ("all_to_all", False),
    "alltoall_base": ("all_to_all", False),
}


class ReadTrace(Record):
    """What a trace gives: a partial profile, and three lists in which each kind of event stands once. `step_us` are the
    times of the recorded steps."""

    profile: Profile
    said: tuple[Item, ...]
    silent: tuple[Item, ...]
    refused: tuple[Item, ...]
    step_us: tuple[float, ...]

    @property
    def text(self) -> str:
        """The file for `--costs`."""
        return encoded({"profile": ProfileJson.of(self.profile)})


def recognises(source: Foreign) -> bool:
    """Whether a source is a trace: JSON with events, or a compressed file."""
    if source.path is None or source.path.is_dir():
        return False
    if source.text.startswith("\x1f"):
        return source.path.suffixes[-2:] in ([".json", ".gz"], [".trace", ".gz"])
    return '"traceEvents"' in source.text


def read(source: Foreign) -> Imported:
    """The costs of a trace, with what became of its events. Raises PlanError."""
    found = read_trace(source.path or Path(source.given))
    about = f"a trace of PyTorch's profiler on {found.profile.machine.device}"
    if found.step_us:
        about += f", of {len(found.step_us)} steps of {median(found.step_us) / 1e3:.4g} ms"
    return Imported(about, found.text, found.said, found.silent, found.refused, is_plan=False)


def read_trace(path: Path) -> ReadTrace:
    """The costs in a file of `export_chrome_trace`. Raises PlanError: it is none, or was recorded without shapes."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PlanError(FileUnreadable(None, str(path), (error.strerror or str(error)).lower())) from None
    trace = trace_of(str(path), data)
    if not any("Input Dims" in event.args or "Input dims" in event.args for event in trace.calls()):
        change = "record it with `record_shapes=True`"
        raise PlanError(TraceUnreadable(None, str(path), "it was recorded without the shapes of tensors", change))
    found = _Reading(trace, path.name)
    if not found.calls:
        change = "record steps of training that is not compiled, with `record_shapes=True`"
        raise PlanError(TraceUnreadable(None, str(path), "it has no call of an operator with its shapes", change))
    return found.result()


# -- what became of events ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Count:
    """Events of one kind: their number, their time, and of calls their backward's and their kinds."""

    events: int = 0
    time_us: float = 0.0
    back_us: float = 0.0
    kinds: set[str] = field(default_factory=set)


class _Reading:
    """Goes through a trace once, and counts what becomes of its events."""

    def __init__(self, trace: TraceFile, name: str) -> None:
        self.trace, self.name = trace, name
        self.calls: dict[str, dict[str, list[float]]] = {}
        self.network: dict[tuple[str, int], list[tuple[int, float]]] = {}
        self.operators: dict[str, _Count] = {}
        self.others: dict[tuple[str, str], _Count] = {}  # by the kind of event, and why it is refused
        self.noted: dict[str, _Count] = {}  # that have nothing to say
        self.optimizer, self.steps = _Count(), list[float]()
        self.made = self._makers()
        nodes = [*self._walk()]
        for node in nodes:
            self._backward(node)
        for event in self._outermost:
            self._call(event)
        self._kernels()

    def time(self, event: TraceEvent) -> float:
        """The microseconds of a call: on a GPU those of its kernels."""
        return event.device_us if self.trace.is_gpu else event.duration_us

    def _makers(self) -> dict[int, list[TraceEvent]]:
        """The forward calls by their sequence number, in time: the last one made the node of autograd."""
        found: dict[int, list[TraceEvent]] = {}
        for event in self.trace.calls():
            if "Sequence number" in event.args and not event.args.get("Fwd thread id"):
                found.setdefault(event.args["Sequence number"], []).append(event)
        for events in found.values():
            events.sort(key=lambda e: e.start)
        return found

    def _walk(self) -> Iterator[TraceEvent]:
        """Yields the nodes of autograd; keeps outermost calls of operators, and counts the rest."""
        self._outermost: list[TraceEvent] = []
        stack = [(event, False) for thread in self.trace.threads for event in reversed(thread)]
        while stack:
            event, in_backward = stack.pop()
            inside = [(e, in_backward) for e in reversed(event.inside)]
            if event.name.startswith(NODE):
                yield event
                stack += [(e, True) for e in reversed(event.inside)]
            elif event.name.startswith(STEP):
                self.steps.append(event.duration_us)
                stack += inside
            elif event.name.startswith(OPTIMIZER):
                self._count(self.optimizer, event)
            elif event.name.startswith(GROUPED):
                self._collective(event)
            elif event.name.startswith(COMPILED):
                self._refuse(event, "kernels of torch.compile: a trace has no shapes of what is in them")
            elif event.category in LAUNCHES and event.launched and not in_backward:
                self._refuse(event, "kernels that no operator of PyTorch launched")
            elif in_backward and not self._is_forward(event):
                stack += inside  # a part of a node's time, but for what computes forward again
            elif self._is_operator(event):
                self._outermost.append(event)
            elif event.category == "cpu_op" and "::" in event.name and not event.name.startswith(NO_OPERATORS):
                self._refuse(event, "the shapes of its tensors are not recorded")
            else:
                stack += inside
                self._count(self.noted.setdefault(_plain(event), _Count()), event)

    @staticmethod
    def _is_forward(event: TraceEvent) -> bool:
        """Whether a call is one of forward, by its number: backward records none."""
        return "Sequence number" in event.args and not event.args.get("Fwd thread id")

    @staticmethod
    def _is_operator(event: TraceEvent) -> bool:
        has_shapes = "Input Dims" in event.args or "Input dims" in event.args
        named = "::" in event.name and not event.name.startswith(NO_OPERATORS)
        return event.category == "cpu_op" and named and has_shapes

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _backward(self, node: TraceEvent) -> None:
        """Gives the time of a node of autograd to the calls that made it."""
        kind = node.name.removeprefix(NODE)
        time_us = self.time(node) - sum(self.time(inner) for inner in self._apart(node))
        if kind.startswith(ACCUMULATES):
            self._refuse(node, "adding gradients of weights takes what the cluster's rates say", time_us)
            return
        makers = self.made.get(node.args.get("Sequence number", -1), [])
        maker = next((m for m in reversed(makers) if m.start < node.start), None)
        chain = [] if maker is None else [m for m in (maker, *maker.ancestors()) if self._is_operator(m)]
        if not chain:
            what = "its forward was not recorded" if maker is None else f"its forward is `{maker.name}`, no operator"
            self._refuse(node, f"backward of which {what}", time_us)
            return
        for call in chain:
            call.back_us = (call.back_us or 0.0) + time_us

    def _apart(self, node: TraceEvent) -> Iterator[TraceEvent]:
        """Yields what runs inside of a node and is not its own: other nodes, forward again, communication."""
        stack = [*node.inside]
        while stack:
            event = stack.pop()
            if event.name.startswith((NODE, *GROUPED)) or (self._is_forward(event) and self._is_operator(event)):
                yield event
            else:
                stack += event.inside

    def _call(self, event: TraceEvent) -> None:
        """Keeps the times of an outermost call, and of the operators inside of it."""
        count = self.operators.setdefault(event.name, _Count())
        self._count(count, event)
        count.back_us += event.back_us or 0.0
        count.kinds.add(_key(event))
        stack = [event]
        while stack:
            call = stack.pop()
            stack += call.inside
            if self._is_operator(call):
                times = self.calls.setdefault(_key(call), {})
                times.setdefault("forward", []).append(self.time(call))
                if call.back_us is not None:
                    times.setdefault("backward", []).append(call.back_us)

    # -- communication -------------------------------------------------------------------------------------------------

    def _collective(self, event: TraceEvent) -> None:
        """Keeps the time of a collective: of NCCL's kernel, or of gloo's work."""
        inner = next((e for e in (event, *event.inside) if "Collective name" in e.args), event)
        kernels = [k for k in event.kernels() if "nccl" in k.name.lower() or "rccl" in k.name.lower()]
        args = next((k.args for k in kernels if "Collective name" in k.args), inner.args)
        if not kernels and not event.name.startswith("gloo:"):
            self._count(self.noted.setdefault(_plain(event), _Count()), event)
            return
        time_us = sum(k.duration_us for k in kernels) if kernels else event.duration_us
        point = self._point(event, args)
        if isinstance(point, str):
            self._refuse(event, point, time_us)
            return
        kind, ranks, size = point
        self.network.setdefault((kind, ranks), []).append((size, time_us))

    def _point(self, event: TraceEvent, args: Mapping[str, Any]) -> tuple[str, int, int] | str:
        """The kind, the number of ranks and the bytes of a collective; or why it is not known."""
        name = str(args.get("Collective name", event.name.partition(":")[2])).lower()
        if name not in COLLECTIVES:
            return "no collective of a plan"
        kind, is_whole = COLLECTIVES[name]
        groups = (self.trace.facts.get("distributedInfo") or {}).get("pg_config") or []
        ranks = args.get("Group size") or (groups[0].get("pg_size") if len(groups) == 1 else None)
        if "In msg nelems" in args:
            elements = args["Out msg nelems" if is_whole else "In msg nelems"]
            itemsize = SIZES.get(str(args.get("dtype", "")).lower())
        else:
            tensors = _tensors(event)
            elements = sum(_product(sizes) for sizes, _ in tensors) * (ranks or 1 if is_whole else 1)
            types = event.args.get("Input type") or [""]
            itemsize = SIZES.get(str(types[0]).lower())
        if not isinstance(ranks, int) or ranks < 2:
            return "the number of its ranks is unknown" if ranks is None else "of one rank"
        if itemsize is None or not elements:
            return "the size of its tensor is not recorded"
        return kind, ranks, int(elements) * itemsize

    # -- counting ------------------------------------------------------------------------------------------------------

    def _count(self, count: _Count, event: TraceEvent, time_us: float | None = None) -> None:
        count.events += 1
        count.time_us += self.time(event) if time_us is None else time_us

    def _refuse(self, event: TraceEvent, reason: str, time_us: float | None = None) -> None:
        self._count(self.others.setdefault((_plain(event), reason), _Count()), event, time_us)

    def _kernels(self) -> None:
        for kernel in self.trace.lost:
            key = kernel.category if kernel.category != "kernel" else "kernel"
            count = self.others.setdefault(
                (key, "no call of PyTorch launched it: of a graph, or of another library"), _Count()
            )
            self._count(count, kernel, kernel.duration_us)

    # -- the result ----------------------------------------------------------------------------------------------------

    def result(self) -> ReadTrace:
        """The profile, and the lists with the share of the time of each kind of event."""
        calls = {key: {phase: median(us) / 1e6 for phase, us in times.items()} for key, times in self.calls.items()}
        network: dict[tuple[str, int], Curve] = {}
        for (kind, ranks), points in self.network.items():
            found = [(size, us / 1e6) for size, us in points]
            network[IN_A_TASK.format(kind), ranks] = Curve.of(found, median)
            network[kind, ranks] = Curve.of(found, min)  # without waiting for others
        machine = ProfiledMachine(self._device(), "unknown", 1, 1, self._processes())
        profile = Profile(machine, {}, network, {}, 0.0, (f"trace {self.name}",), calls, True)
        return ReadTrace(profile, (*self._said(),), (*self._silent(),), (*self._refused(),), tuple(self.steps))

    def _device(self) -> str:
        devices = self.trace.facts.get("deviceProperties") or []
        named = (
            [d["name"] for d in devices if isinstance(d, dict) and d.get("name")] if isinstance(devices, list) else []
        )
        return (named[0] if named else "a GPU") if self.trace.is_gpu else PROCESSOR

    def _processes(self) -> int:
        info = self.trace.facts.get("distributedInfo")
        size = info.get("world_size") if isinstance(info, dict) else None
        return size if isinstance(size, int) and size > 0 else 1

    @property
    def _whole_us(self) -> float:
        """The time of all that computes or communicates."""
        counts = [*self.operators.values(), *self.others.values(), self.optimizer]
        network = sum(us for points in self.network.values() for _, us in points)
        return sum(c.time_us + c.back_us for c in counts) + network

    def _share(self, time_us: float) -> str:
        return f"{_ms(time_us)}, {time_us / self._whole_us:.1%}" if self._whole_us else _ms(time_us)

    def _said(self) -> Iterator[Item]:
        for name, c in sorted(self.operators.items(), key=lambda item: -item[1].time_us - item[1].back_us):
            back = f" and backward {_ms(c.back_us)}" if c.back_us else ""
            calls = f"{len(c.kinds)} call{'s' if len(c.kinds) > 1 else ''} by shapes"
            time = f"forward {_ms(c.time_us)}{back}, {(c.time_us + c.back_us) / (self._whole_us or 1):.1%}"
            yield Item(f"{name} ({c.events})", f"{calls}: {time}")
        for (kind, ranks), points in sorted(self.network.items()):
            sizes = len({size for size, _ in points})
            time = self._share(sum(us for _, us in points))
            yield Item(
                f"{kind} ({len(points)})",
                f"network `{kind} among {ranks}`, {sizes} size{'s' if sizes > 1 else ''}: {time}",
            )

    def _silent(self) -> Iterator[Item]:
        if self.steps:
            whole = sum(self.steps)
            times = (
                f"{_ms(median(self.steps))} each; operators, the optimizer and communication are {_ms(self._whole_us)}"
            )
            yield Item(f"{STEP} ({len(self.steps)})", f"a check: {times} of {_ms(whole)} in all")
        for name, c in sorted(self.noted.items()):
            because = (
                "calls of the driver" if name in LAUNCHES else "what is inside of it counts, where it is an operator"
            )
            yield Item(f"{name} ({c.events})", because)
        reasons = {
            "ac2g": "links kernels to their launches",
            "fwdbwd": "links backward to forward",
            "metadata": "names",
        }
        for name, count in sorted(self.trace.others.items()):
            yield Item(f"{name} ({count})", reasons.get(name, "no call of an operator"))

    def _refused(self) -> Iterator[Item]:
        found = [(name, reason, c) for (name, reason), c in self.others.items()]
        if self.optimizer.events:
            found.append((OPTIMIZER, "the optimizer takes what the cluster's rates say", self.optimizer))
        for name, reason, c in sorted(found, key=lambda one: (-one[2].time_us, one[0])):
            yield Item(f"{name} ({c.events})", f"{reason}: {self._share(c.time_us)}")


# -- words -------------------------------------------------------------------------------------------------------------


def _key(event: TraceEvent) -> str:
    return call_key(event.name, _operands(event))


def _operands(event: TraceEvent) -> list[Tensor | list[Tensor]]:
    """The tensors of a call with their sizes and types; those of a list have sizes alone."""
    shapes = event.args.get("Input Dims", event.args.get("Input dims")) or []
    types = event.args.get("Input type") or []
    found: list[Tensor | list[Tensor]] = []
    for shape, kind in zip(shapes, types, strict=False):
        if kind in TYPES:
            found.append((tuple(shape), TYPES[kind]))
        elif kind in ("TensorList", "GenericList") and shape and all(isinstance(sizes, list) for sizes in shape):
            found.append([(tuple(sizes), "") for sizes in shape])
    return found


def _tensors(event: TraceEvent) -> list[Tensor]:
    """All tensors of a call, those of lists among them."""
    found: list[Tensor] = []
    for operand in _operands(event):
        found += operand if isinstance(operand, list) else [operand]
    return found


def _product(sizes: tuple[int, ...]) -> int:
    whole = 1
    for size in sizes:
        whole *= size
    return whole


def _plain(event: TraceEvent) -> str:
    """The kind of an event, without what differs from one to the next."""
    name = event.name.removeprefix(NODE).partition("#")[0]
    return event.category if event.category not in ("cpu_op", "user_annotation") else name


def _ms(time_us: float) -> str:
    return f"{time_us / 1e3:.3g} ms" if time_us < 999.5e3 else f"{time_us / 1e3:,.0f} ms"
