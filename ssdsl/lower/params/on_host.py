"""`assign OPS.weights to host`: which weights may lie in the memory of the host."""

from collections.abc import Sequence

from ssdsl.ir.param import StateAxes
from ssdsl.lower.stages import Assembled
from ssdsl.plan.plan import State
from ssdsl.text.diagnostic import Diagnostic, PlanError
from ssdsl.text.edits import TextEdit
from ssdsl.text.source import Span


def check_on_host(lowering: Assembled, sharded: Sequence[StateAxes]) -> None:
    """Raises PlanError for a trained weight on the host that is not in the parts that the optimizer updates. `sharded`
    are the axes of the state of each parameter."""
    state = lowering.plan.state
    wrong: dict[Span, WeightsNotGathered] = {}
    for param, axes in zip(lowering.params, sharded, strict=True):
        if not param.trained or state.on_host_of(param.weight) is not State.WEIGHTS:
            continue
        is_home = any(param.weight in one.weights for one in state.matrices)
        if is_home or not axes.weights or axes.weights != axes.optimizer:
            stated = next(s for s in state.on_host if param.weight in s.weights and s.state is State.WEIGHTS)
            operators = stated.span.text.removeprefix("assign ").partition(".weights")[0]
            over = param.cut_over(tuple(axis for axis, _ in param.submesh.axes))
            wider = axes.optimizer if axes.weights else ()
            about = param.weight, operators, over, wider, is_home
            wrong.setdefault(stated.span, WeightsNotGathered(stated.span, *about))
    if wrong:
        raise PlanError(*wrong.values())


class WeightsNotGathered(Diagnostic):
    """`assign OPS.weights to host`: devices get such weights from their hosts when they gather them, and the host
    updates them. So they are in parts (ZeRO-3), those that the optimizer updates: `split OPS.weights by row into dp`
    says so. Whole matrices (`by matrix`) are stepped on elsewhere; a weight that only one device has is never gathered.
    """

    code = "E0405"
    title = "`{weight}` cannot lie on the host: {reason}"
    help = "{change}"
    weight: str
    operators: str
    axes: tuple[str, ...]  # over which it may be in parts
    wider: tuple[str, ...]  # over which its optimizer's state is
    is_home: bool

    @property
    def reason(self) -> str:
        if self.is_home:
            return "the optimizer steps on it as a whole"
        return "it is in larger parts than the optimizer updates" if self.wider else "it is not in parts"

    @property
    def change(self) -> str:
        if self.is_home:
            return f"assign `{self.operators}.optimizer` to host instead"
        if not self.axes:
            return f"assign `{self.operators}.optimizer` to host instead: no axis of several devices replicates it"
        return f"add a line `{self.added}`"

    @property
    def added(self) -> str:
        return f"split {self.operators}.weights by row into {', '.join(self.wider or self.axes)}"

    def edits(self) -> tuple[TextEdit, ...]:
        if self.span is None or self.is_home or not self.axes:
            return ()
        return (TextEdit.at_end(self.span.source, self.added),)
