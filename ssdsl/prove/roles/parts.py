"""The parts that each task reads, from the functions' inputs alone; the order of tasks plays no role."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from ssdsl.ir.action import At, Compute
from ssdsl.ir.comm import Transfer
from ssdsl.ir.function import Backward, Concat, Earlier, Merge, Sum
from ssdsl.ir.value import TimeIndex
from ssdsl.plan.plan import Phase
from ssdsl.prove.facts import ProofFacts
from ssdsl.prove.failures import Rule
from ssdsl.prove.types.local import covered

Key = tuple[str, At]  # a part of a value: the slot that keeps it, and its coordinates in time

PHASES: dict[Backward, tuple[Phase, ...]] = {
    Backward.NONE: (Phase.FORWARD,),
    Backward.WHOLE: (Phase.FORWARD, Phase.BACKWARD),
    Backward.HALVES: (Phase.FORWARD, Phase.DGRAD, Phase.WGRAD),
    Backward.DGRAD: (Phase.FORWARD, Phase.DGRAD),
}


@dataclass(slots=True)
class TaskReads:
    """The reads of all tasks, by function and coordinates. `reads` are the parts that a task's forward reads, `learns`
    those whose gradients its backward adds to; `adds` are, by part, the tasks and messages that add to its gradient on
    the devices that keep it."""

    reads: dict[tuple[int, At], list[Key]] = field(default_factory=dict)
    learns: dict[tuple[int, At], list[Key]] = field(default_factory=dict)
    adds: dict[Key, set[Compute | int]] = field(default_factory=dict)


def parts_of(facts: ProofFacts) -> TaskReads:
    """All reads of all tasks. Adds a failure for each part whose gradient a transfer sends back, but nothing gives."""
    found = TaskReads()
    for function in facts.program.functions:
        phase = PHASES[function.backward][-1 if function.backward is Backward.WHOLE else 1 :][:1]
        for given in function.inputs:
            learns = given.gradient
            shared = {t.name for t in given.time} - {m.index.name for m in given.merges}
            for at in coordinates(function.time):
                here = dict(zip((t.name for t in function.time), at, strict=True))
                if not shared <= here.keys():
                    continue  # the forward walk has added a failure
                some = {m.index.name: _parts_for(m, here) for m in given.merges}
                for part in itertools.product(
                    *([here[t.name]] if t.name in shared else some.get(t.name, range(t.parts)) for t in given.time)
                ):
                    found.reads.setdefault((function.number, at), []).append((given.slot, part))
                    if learns and phase:
                        found.learns.setdefault((function.number, at), []).append((given.slot, part))
                        found.adds.setdefault((given.slot, part), set()).add(Compute(function.number, at, phase[0]))
    for message in facts.program.messages:
        if isinstance(message, Transfer) and message.backward is not None:
            for part in coordinates(message.time):
                if (message.target_slot, part) not in found.adds:
                    where = f"transfer {message.number}"
                    facts.failures.add(
                        Rule.MESSAGE, where, message.value, "a gradient to send", f"none of {list(part)}"
                    )
                else:
                    found.adds.setdefault((message.source_slot, part), set()).add(message.number)
    return found


def _parts_for(merge: Merge, here: dict[str, int]) -> Sequence[int]:
    """The parts along an index that a task at the coordinates `here` reads, of a value whose parts along it are
    merged."""
    at = here.get(merge.index.name, 0)
    match merge:
        case Earlier():
            return range(at)
        case Concat() if merge.reads is not None and merge.cut.at is not None and at < len(merge.reads):
            wanted = covered(merge.reads[at])
            return [k for k, own in enumerate(merge.cut.at) if not wanted.isdisjoint(covered(own))]
        case Concat() | Sum():
            return range(merge.index.parts)
        case _:
            assert_never(merge)


def coordinates(time: Sequence[TimeIndex]) -> Iterator[At]:
    """All coordinates of some indices in time."""
    return itertools.product(*(range(t.parts) for t in time))
