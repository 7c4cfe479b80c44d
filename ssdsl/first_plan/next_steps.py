"""What to try after a first plan: lines to uncomment and commands, each of which was tried on the model."""

import math
import shlex
from collections.abc import Iterator

from ssdsl.cluster.load import load_cluster
from ssdsl.first_plan.draft import Chosen, Tries
from ssdsl.first_plan.ladder import GOOD
from ssdsl.lang.read import read_source
from ssdsl.lang.shipped import plan_path
from ssdsl.matrix.cell import PlanText
from ssdsl.matrix.on_model import plan_on_model
from ssdsl.model.graph import Origin
from ssdsl.plan.declarations import params
from ssdsl.record import Record
from ssdsl.sketch.sketch import sketch_of
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source

BATCH = "split model by batch into m = 2"
LINES = (  # about, and lines that go together
    ("gradients are kept in parts as well (ZeRO-2)", ("split model.grads by row into dp",)),
    (
        "weights as well, gathered where they are used (ZeRO-3, with the line above)",
        ("split model.weights by row into dp",),
    ),
    (
        "what tp leaves whole is cut along the sequence (sequence parallelism)",
        ("split model[tp = none] by seq into tp where possible", "recompute model.gathers"),
    ),
    ("two micro-batches, one after the other: half of the activations at a time", (BATCH,)),
    ("repeated modules keep only their inputs, and are computed again in backward", ("recompute model",)),
    ("operators compute in bfloat16, from weights in float32", ("precision model to bf16",)),
)
PLANS = (  # that come with ssdsl, with what they are for
    ("zero_bubble", "stages of layers, and micro-batches (a pipeline)"),
    ("megatron", "a pipeline of tensor-parallel stages"),
    ("experts", "experts over devices of their own axis"),
    ("context_parallel", "parts of the sequence, whose keys and values go around a ring"),
    ("spatial", "blocks of an image or a volume"),
    ("zero", "all of the state of training in parts (ZeRO-3)"),
)
TRAINED, PROCESSES = 300_000_000, 16  # weights and processes of a run on one machine
MOST = 8  # settings of a plan that are tried


class NextLines(Record):
    """Lines that may be uncommented together, and what for."""

    about: str
    lines: tuple[str, ...]


class NextCommand(Record):
    """A command, and what for."""

    about: str
    command: str


def next_lines(tries: Tries, chosen: Chosen) -> Iterator[NextLines]:
    """Each of `LINES` with which the plan is proved, and no line of which is without effect."""
    said = {*chosen.draft.statements, *chosen.draft.state}
    for about, lines in LINES:
        if said.isdisjoint(lines) and tries.proves(tries.cell(chosen.draft.text + "\n".join(lines) + "\n")):
            yield NextLines(about, lines)


def next_commands(tries: Tries, chosen: Chosen, model: str, file: str, can_train: bool) -> Iterator[NextCommand]:
    """The commands that read the plan, and those of plans that come with ssdsl and divide this model otherwise."""
    plan, named = shlex.quote(file), shlex.quote(model)
    yield NextCommand("devices, tasks, memory of the state, communication", f"ssdsl check {plan}")
    weights = sum(math.prod(value.shape) for value in tries.graph.of(Origin.WEIGHT))
    if can_train and weights <= TRAINED and chosen.draft.devices <= PROCESSES:
        yield NextCommand("train on processes, and compare with a single device", f"ssdsl verify {plan}")
    devices = chosen.draft.devices
    if (cluster := _cluster(tries, chosen)) is not None:
        yield NextCommand("time and memory of a step", f"ssdsl simulate {plan} --cluster {cluster}")
        source = Source(file, chosen.draft.text)
        wanted = range(devices, devices + 1)
        if next(sketch_of(source, None, tries.trials.workspace.model, wanted).settings(wanted), None) is not None:
            command = f"ssdsl search {plan} --cluster {cluster} --devices {devices}"
            yield NextCommand("the best widths for these devices", command)
    for name, about in PLANS if devices > 1 else ():
        path = plan_path(name)
        text = PlanText(name, read_source(path), path.parent)
        best = plan_on_model(tries.trials, text, range(devices, devices + 1), most=MOST).best
        if best is not None and (best.work or 1.0) <= GOOD / devices:
            defaults = {p.name: p.default for p in params(text.script)}
            set_ = "".join(f" --set {p}={value}" for p, value in best.params.items() if defaults[p] != value)
            yield NextCommand(about, f"ssdsl check {name} --model {named}{set_}")
    yield NextCommand("which of all plans prove on this model", f"ssdsl plans --for {named}")


def _cluster(tries: Tries, chosen: Chosen) -> str | None:
    """A cluster with as many devices, on which a step of the plan can be simulated."""
    workspace, name = tries.trials.workspace, f"a100x{chosen.draft.devices}"
    try:
        workspace.simulate(workspace.candidate(Source("plan.ssp", chosen.draft.text), {}), load_cluster(name))
    except PlanError:
        return None
    return name
