"""Homes: where each weight lives, in which layout, and along which axes its gradient is a partial sum."""

from dataclasses import dataclass

from ssdsl.lower.blocks import Run
from ssdsl.lower.cuts import OperandLayout, OperatorCut, operand_layout, operand_shape
from ssdsl.lower.defer import with_partial
from ssdsl.lower.errors import HomesOverlap, ShardConflict
from ssdsl.lower.layout import PARTIAL, REPLICATE, Digit, Layout, Place, Shape, Submesh
from ssdsl.lower.schedule import Home
from ssdsl.model.graph import Origin
from ssdsl.plan.plan import Plan, Shard, State
from ssdsl.text.diagnostic import PlanError


@dataclass(frozen=True, slots=True)
class HomeLayout:
    layout: Layout
    gradient: Layout


class Homes:
    """The homes of all weights and buffers, one for each submesh that uses them."""

    def __init__(
        self,
        plan: Plan,
        runs: list[Run],
        cuts: dict[str, tuple[OperatorCut, ...]],
        deferred: dict[str, frozenset[str]],
    ) -> None:
        self.plan = plan
        self.uses: dict[str, dict[Submesh, list[OperandLayout]]] = {}
        self.shapes: dict[str, Shape] = {}
        for run in runs:
            for operator in run.operators:
                for operand in operator.inputs:
                    if plan.graph.values[operand.value].origin in (Origin.WEIGHT, Origin.BUFFER):
                        axes = run.submesh.axes
                        need = operand_layout(operator, cuts[operator.name], operand, axes, is_output=False)
                        need = with_partial(need, axes, deferred.get(operator.name, frozenset()))
                        self.uses.setdefault(operand.value, {}).setdefault(run.submesh, []).append(need)
                        self.shapes[operand.value] = operand_shape(operator, operand)
        self.layouts = {w: self._layouts(w, uses) for w, uses in self.uses.items()}

    def on(self, weight: str, submesh: Submesh) -> HomeLayout:
        return self.layouts[weight][submesh]

    def _layouts(self, weight: str, uses: dict[Submesh, list[OperandLayout]]) -> dict[Submesh, HomeLayout]:
        """Uses that agree decide the layout; where they do not, the weight is replicated and each takes its part."""
        self._check_apart(weight, list(uses))
        alike = len({s.axes for s in uses}) == 1
        merged: list[Place] | None = None
        for submesh, needs in uses.items():
            for need in needs:
                places: list[Place] = list(need.value.places) if alike else [REPLICATE] * len(submesh.axes)
                if merged is None or not alike:
                    merged = places
                else:
                    merged = [a if a == b else REPLICATE for a, b in zip(merged, places, strict=True)]
        assert merged is not None
        result = {}
        for submesh, needs in uses.items():
            layout = Layout(tuple(merged)) if alike else Layout((REPLICATE,) * len(submesh.axes))
            gradient: list[Place] = list(layout.places)
            for need in needs:
                for at, place in enumerate(need.gradient.places):
                    if place is PARTIAL:
                        gradient[at] = PARTIAL
            result[submesh] = HomeLayout(layout, Layout(tuple(gradient)))
        return result

    def _check_apart(self, weight: str, submeshes: list[Submesh]) -> None:
        for n, a in enumerate(submeshes):
            for b in submeshes[n + 1 :]:
                if set(a.ranks()) & set(b.ranks()):
                    raise PlanError(HomesOverlap(None, weight, str(a), str(b)))

    def homes(self) -> tuple[Home, ...]:
        """All homes with the cuts of their state (ZeRO), in the order of the graph."""
        over = {state: self._shards(state) for state in State}
        return tuple(
            self._home(weight, submesh, home, over)
            for weight, homes in self.layouts.items()
            for submesh, home in homes.items()
        )

    def _shards(self, state: State) -> dict[str, Shard]:
        return {w: shard for shard in self.plan.shards if shard.state is state for w in shard.weights}

    def _home(self, weight: str, submesh: Submesh, home: HomeLayout, over: dict[State, dict[str, Shard]]) -> Home:
        partial = tuple(a for (a, _), p in zip(submesh.axes, home.gradient.places, strict=True) if p is PARTIAL)
        whole = [a for (a, _), p in zip(submesh.axes, home.layout.places, strict=True) if not isinstance(p, Digit)]
        sharded = {}
        for state in State:
            shard = over[state].get(weight)
            axes = tuple(a for a in shard.axes if dict(submesh.mesh.axes).get(a) != 1) if shard else ()
            for axis in axes:
                if axis not in whole and shard is not None:
                    candidates = ", ".join(f"`{a}`" for a in whole) or "there is none"
                    raise PlanError(ShardConflict(shard.span, state.value, weight, axis, candidates))
            sharded[state] = axes
        weights = sharded[State.WEIGHTS]
        grads = sharded[State.GRADS] or weights
        optimizer = sharded[State.OPTIMIZER] or grads
        return Home(weight, submesh, self.shapes[weight], home.layout, partial, weights, grads, optimizer)
