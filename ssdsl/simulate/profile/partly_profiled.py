"""The costs of a program from a profile that may lack times: what it lacks takes as long as a cluster's rates say.

A kernel of one operator takes the time that the profile has of it, by its words (`kernel_key.py`) or by those of a call
in a trace (`call_key.py`). One that the profile does not know, and a kernel of several operators, takes the time of
the roofline. So does communication, unless the profile has a curve for its kind and its number of ranks. The report
says what share of the time was measured (`Coverage`).
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ssdsl.analyse.collectives import SizedCollective
from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.analyse.state import MIXED, StatePrecision
from ssdsl.cluster.cluster import Cluster
from ssdsl.cluster.device import Device
from ssdsl.ir.function import Function, OpPart
from ssdsl.ir.layout import Submesh
from ssdsl.ir.program import Program
from ssdsl.record import Record, replace
from ssdsl.simulate.price.costs import Cost
from ssdsl.simulate.price.fusion import Fusion, Launch
from ssdsl.simulate.price.launch_time import LaunchTime
from ssdsl.simulate.price.network import Network
from ssdsl.simulate.price.roofline import ComputeTimes, Computing, Roofline
from ssdsl.simulate.profile.call_key import part_keys
from ssdsl.simulate.profile.kernel_key import kernel_key
from ssdsl.simulate.profile.profile import IN_A_TASK, Profile

PROCESSOR = "cpu"  # the device of a trace without kernels of a GPU


class Coverage(Record):
    """How much of the computing of a step is measured: the seconds of all tasks, those of them that the profile has,
    and the calls that it lacks with their seconds, the longest first. `kinds` is the number of kinds of calls. `origin`
    is where they were measured, `cluster` the one whose rates the others have."""

    origin: str
    cluster: str
    computing_s: float
    measured_s: float
    kinds: int
    lacking: tuple[tuple[str, float], ...]

    @property
    def share(self) -> float:
        """The share of the computing that is measured."""
        return self.measured_s / self.computing_s if self.computing_s else 0.0


Calls = tuple[tuple[str, bool, ComputeTimes], ...]  # of a section: words, whether they are measured, and their times


class PartlyProfiled(Roofline):
    """The costs of a program's actions on a cluster, from a profile as far as it has them."""

    def __init__(self, program: Program, profile: Profile, cluster: Cluster, state: StatePrecision = MIXED) -> None:
        facts = ProgramIndex.on(program, cluster, state)
        super().__init__(facts, cluster, Fusion(facts))
        self.measured = MeasuredComputing(facts, self.computing.fusion, profile=profile)
        self.computing = self.measured
        self.network = MeasuredNetwork(cluster, profile)

    def coverage(self) -> Coverage:
        """What share of the computing of all tasks of a step is measured."""
        counts = Counter(
            (role.name, task.function, task.phase) for role in self.program.roles for task in role.computes()
        )
        total_s = measured_s = 0.0
        lacking: dict[str, float] = {}
        kinds: set[str] = set()
        for (role, number, phase), count in counts.items():
            function = self.program.functions[number]
            for section in range(len(function.sections)):
                for words, is_measured, times in self.measured.calls(function, section, self.devices[role][0]):
                    time_s = count * times.of(phase)
                    kinds.add(words)
                    total_s += time_s
                    measured_s += time_s if is_measured else 0.0
                    if not is_measured and time_s:
                        lacking[words] = lacking.get(words, 0.0) + time_s
        longest = sorted(lacking.items(), key=lambda item: (-item[1], item[0]))
        profile = self.measured.profile
        origin = ", ".join([*profile.sources, f"on {profile.machine.device}"])
        return Coverage(origin, self.cluster.name, total_s, measured_s, len(kinds), tuple(longest))


class MeasuredNetwork(Network):
    """The times of communication on a cluster, those of collectives from a profile where it has their kind among as
    many ranks, and a size like theirs."""

    def __init__(self, cluster: Cluster, profile: Profile) -> None:
        super().__init__(cluster)
        self.profile = profile

    def collective(self, found: SizedCollective, submesh: Submesh) -> Cost:
        """The cost of a collective: in a task, if the profile has that, else alone."""
        estimate = super().collective(found, submesh)
        ranks = math.prod(n for axis, n in submesh.axes if axis in found.axes)
        for kind in (IN_A_TASK.format(found.kind), found.kind):
            curve = self.profile.network.get((kind, ranks))
            if curve is not None and curve.covers(found.size_bytes) and not found.from_host:
                time_s = curve.reaching(found.size_bytes)
                return Cost(0.0, time_s, tuple(replace(sent, time_s=time_s) for sent in estimate.sent[:1]))
        return estimate


@dataclass
class MeasuredComputing(Computing):
    """The compute times of a program's functions, from a profile as far as it has them."""

    profile: Profile = field(kw_only=True)
    _calls: dict[tuple[int | None, Device], Calls] = field(default_factory=dict)  # by a section's kind

    @property
    def views_take_time(self) -> bool:
        """Whether the profile is of a processor, where a call that only makes a view takes time as well."""
        return self.profile.machine.device == PROCESSOR

    def of_section(self, function: Function, number: int, device: Device) -> ComputeTimes:
        """The times of one section of a function, by its number."""
        times = ComputeTimes()
        for _, _, own in self.calls(function, number, device):
            times.add(own)
        return times

    def calls(self, function: Function, number: int, device: Device) -> Calls:
        """The calls of a section: its kernels, and the views that take time."""
        section = function.sections[number]
        key = section.kind, device
        if section.kind is None or key not in self._calls:
            self._calls[key] = tuple(self._found_calls(function, number, device))
        return self._calls[key]

    def _found_calls(self, function: Function, number: int, device: Device) -> Iterator[tuple[str, bool, ComputeTimes]]:
        section, launches = function.sections[number], self.fusion.launches(function)[number]
        for launch in launches:
            known = self._known(function, launch.ops[0]) if len(launch.ops) == 1 else None
            yield self._words(function, launch), known is not None, self._of_launch(function, section, launch, device)
        launched = {op.operator for launch in launches for op in launch.ops}
        views = (op for op in section.body if isinstance(op, OpPart) and op.operator not in launched)
        for op in views if self.views_take_time else ():
            if (known := self._known(function, op)) is not None:
                words = kernel_key(self.facts, function, op)
                yield words, True, _times(known, ComputeTimes(), op, section.recompute)

    def _add(self, times: ComputeTimes, launch: LaunchTime, recompute: bool) -> None:
        estimate, ops = ComputeTimes(), launch.launch.ops
        super()._add(estimate, launch, recompute)
        known = self._known(launch.function, ops[0]) if len(ops) == 1 else None
        times.add(estimate if known is None else _times(known, estimate, ops[0], recompute))

    def _known(self, function: Function, op: OpPart) -> Mapping[str, float] | None:
        """The times of an operator that the profile has, with a forward at least."""
        words = kernel_key(self.facts, function, op)
        tables = self.profile.operators, self.profile.calls
        found = [tables[0].get(words), *(tables[1].get(key) for key in part_keys(self.facts, function, op))]
        return next((times for times in found if times is not None and "forward" in times), None)

    def _words(self, function: Function, launch: Launch) -> str:
        """The words of a kernel: those of its first operator, and how many follow it."""
        more = f" and {len(launch.ops) - 1} more in a kernel" if len(launch.ops) > 1 else ""
        return f"{kernel_key(self.facts, function, launch.ops[0])}{more}"


def _times(known: Mapping[str, float], estimate: ComputeTimes, op: OpPart, recompute: bool) -> ComputeTimes:
    """Measured times. A backward is divided into halves as the roofline divides it; one that was not measured is the
    roofline's."""
    back = estimate.dgrad + estimate.wgrad
    dgrad, wgrad = known.get("dgrad"), known.get("wgrad")
    if dgrad is None or wgrad is None:
        share = estimate.wgrad / back if back else 0.0
        whole = known.get("backward", back)
        dgrad, wgrad = whole * (1 - share), whole * share
    if not op.learns:
        return ComputeTimes(known["forward"])
    return ComputeTimes(known["forward"], known["forward"] if recompute else 0.0, dgrad, wgrad)
