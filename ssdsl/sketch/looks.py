"""Looks at a setting before it is simulated: a first look at its text, a nearer look at its functions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ssdsl.analyse.state import StatePrecision
from ssdsl.cluster.cluster import Cluster
from ssdsl.collector import paused_collector
from ssdsl.identity import ByIdentity
from ssdsl.ir.program import Kernels
from ssdsl.model.graph import Graph
from ssdsl.plan.interpret import Reading, read_plan
from ssdsl.plan.model_index import ModelIndex
from ssdsl.plan.plan import Plan
from ssdsl.record import Record, replace
from ssdsl.sketch.answers import clocks
from ssdsl.sketch.bounds.bounds import Bounds, HeldBytes, Least
from ssdsl.sketch.bounds.task_bounds import has_orders, least_of
from ssdsl.sketch.by import By
from ssdsl.sketch.family import family
from ssdsl.sketch.sketch import Sketch, Values
from ssdsl.solve.grid import Point, Worth
from ssdsl.text.diagnostic import Diagnostic, PlanError

EFFORT = 100_000  # a simulation of so many tasks comes after plans that cost up to twice as much
UNKNOWN_S = 1e-9  # a bound below every step
LEAST_UNIT = 1e-4  # of a device's memory, for a micro-batch that keeps next to nothing


class Look(Record):
    """The result of a look: the worth of a setting, or why it has none. The first look names its family.

    `over_bytes` is how much more its fullest device needs than it may use. `elsewhere`: the setting takes a number of
    devices that was not asked for.
    """

    worth: Worth | None = None
    family: str = ""
    over_bytes: int = 0
    refused: Diagnostic | None = None
    elsewhere: bool = False


@dataclass
class Looks:
    """Looks at settings of sketches. A look depends on its setting alone.

    A point is the number of a sketch, and a value for each of its open params. `memory` is the share of each device's
    memory that a plan may need. If `is_measured`, steps are simulated by measured times, for which there are no bounds.
    """

    model: ModelIndex
    cluster: Cluster
    sketches: Sequence[Sketch]
    devices: range
    state: StatePrecision
    memory: float
    is_measured: bool
    kernels: Kernels
    by: By = By.DEVICES
    bounds: ByIdentity[Graph, Bounds] = field(default_factory=ByIdentity)  # of plans that name parts, others
    without_order: list[bool] = field(init=False)  # of each sketch, whether it has no order

    def __post_init__(self) -> None:
        self.without_order = [*map(clocks.is_without_order, self.sketches)]

    def at(self, question: tuple[bool, Point]) -> Look:
        """A look at a point; a nearer look if the question's flag says so."""
        is_near, point = question
        return self._look(point, self._nearer if is_near else self._first)

    def values(self, point: Point) -> tuple[Sketch, Values]:
        """The sketch and the setting of a point."""
        sketch = self.sketches[point[0]]
        return sketch, dict(zip((p.name for p in sketch.open), point[1:], strict=True))

    @paused_collector()
    def _look(self, point: Point, look: Callable[[Reading, bool], Look]) -> Look:
        sketch, values = self.values(point)
        try:
            reading = read_plan(
                sketch.script, self.model, sketch.overrides(values), sketch.folder, most=1, orders=False
            )
            is_open = self.without_order[point[0]] and clocks.may_be_vee(reading.plan)
            return look(reading, reading.context.facts.halved or is_open)
        except PlanError as error:
            return Look(refused=error.diagnostics[0])

    def _first(self, reading: Reading, may_be_halved: bool) -> Look:
        plan = reading.plan
        if plan.devices not in self.devices:
            return Look(elsewhere=True)
        self.cluster.check_size(plan.devices)
        if (bounds := self.bounds.get(plan.graph)) is None:
            bounds = self.bounds[plan.graph] = Bounds(plan.graph, self.cluster, self.state)
        least = bounds.of(plan, may_be_halved)
        if self.is_measured:
            least = Least(UNKNOWN_S, least.memory)
        return replace(self._found(plan, least), family=family(plan))

    def _nearer(self, reading: Reading, may_be_halved: bool) -> Look:
        plan, hides = reading.plan, has_orders(reading.script)
        return self._found(plan, least_of(plan, self.cluster, self.state, may_be_halved, self.kernels, hides))

    def _found(self, plan: Plan, least: Least) -> Look:
        fullest = max(least.memory, key=lambda h: h.size_bytes / h.capacity_bytes, default=HeldBytes(0.0, 1.0))
        most_bytes = self.memory * fullest.capacity_bytes
        unit = max(fullest.turn_bytes / most_bytes, LEAST_UNIT)
        share, effort = fullest.size_bytes / most_bytes, least.tasks / EFFORT
        each_s = plan.devices if self.by is By.DEVICES else self.cluster.second_price(plan.devices)
        worth = Worth(least.step_s * each_s, share, effort, unit)
        over = max((held.size_bytes - self.memory * held.capacity_bytes for held in least.memory), default=0.0)
        return Look(worth, over_bytes=max(0, int(over)))
