"""What the rules of a plan's widths read, and the widths that its model depends on."""

import math

from ssdsl.importers.errors import WidthsDiffer
from ssdsl.importers.megatron.architectures import DescribedModel
from ssdsl.importers.megatron.arguments import Arguments
from ssdsl.record import Record
from ssdsl.text.diagnostic import PlanError


class PlanSizes(Record):
    """Widths that a model's text depends on: devices of a layer and of the pipeline, and the batch."""

    data: int
    tensor: int
    context: int
    stages: int
    batch: int
    micro_batch: int
    is_divided: bool  # whether the devices are a multiple of these widths


class ParallelRequest(Record):
    """What the rules below read. `world` is the number of devices; it, `layers` and `experts` are 0 where they are not
    known, `kind` is None then."""

    args: Arguments
    sizes: PlanSizes
    world: int
    layers: int
    experts: int
    kind: DescribedModel | None


def sizes_of(args: Arguments, world: int) -> PlanSizes:
    """The widths of a number of devices, 0 where it is not known."""
    tensor = max(1, args.number("tensor-model-parallel-size", default=1))
    stages = max(1, args.number("pipeline-model-parallel-size", default=1))
    context = max(1, args.number("context-parallel-size", "ds-sequence-parallel-size", default=1))
    inner = tensor * stages * context
    is_divided = world % inner == 0
    data = world // inner if world and is_divided else _fewest(args, tensor * context)
    micro_batch = max(1, args.number("micro-batch-size", "batch-size", default=1))
    schedule = args.text("step-batch-size-schedule").replace(",", " ").split()
    last = schedule[-1].rpartition(":")[2] if schedule else ""
    batch = args.number("global-batch-size") or (int(last) if last.isdigit() else 0) or micro_batch * data
    return PlanSizes(data, tensor, context, stages, batch, micro_batch, is_divided)


def _fewest(args: Arguments, inner: int) -> int:
    """The fewest replicas that experts and copies of the optimizer's state leave possible; `inner` are the devices of a
    replica in a stage."""
    experts = args.number("expert-model-parallel-size", "moe-expert-parallel-size", default=1)
    width = max(1, experts * args.number("expert-tensor-parallel-size", default=1))
    copies = max(1, args.number("num-distributed-optimizer-instances", default=1))
    return math.lcm(width // math.gcd(width, inner), copies)


def wrong(args: Arguments, flag: str, fact: str, reason: str, change: str) -> PlanError:
    return PlanError(WidthsDiffer(args.span(args.last(flag)), fact, reason, change))
