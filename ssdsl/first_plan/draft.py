"""A plan while it is written: its axes, its statements, and the text that these make."""

import math

from ssdsl.matrix.cell import Cell, PlanText
from ssdsl.matrix.trials import Trials
from ssdsl.record import Record, replace
from ssdsl.text.diagnostic import InternalError, PlanError
from ssdsl.text.source import Source


class Width(Record):
    """An axis of the mesh, whose width is a param."""

    axis: str
    param: str
    size: int
    about: str


class PlanDraft(Record):
    """The axes, and the statements from the mesh to the `assign`, one text each. `state` are those about the state of
    training, which stand behind the others. `about` says in a few words what is divided how."""

    widths: tuple[Width, ...]
    statements: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    assign: str = "assign model to gpus"
    about: tuple[str, ...] = ()

    @property
    def devices(self) -> int:
        """The number of devices."""
        return math.prod(width.size for width in self.widths)

    @property
    def text(self) -> str:
        """The text of the plan, without comments above it."""
        params = [f'param {w.param} = {w.size} "{w.about}"' for w in self.widths]
        mesh = f"mesh gpus({', '.join(f'{w.axis} = {w.param}' for w in self.widths)})"
        blocks = ("\n".join(params), mesh, "\n".join(self.statements), "\n".join(self.state), self.assign)
        return "\n\n".join(block for block in blocks if block) + "\n"

    def also(self, *statements: str) -> "PlanDraft":
        """The draft with further statements."""
        return replace(self, statements=(*self.statements, *statements))


class Chosen(Record):
    """A draft that is proved, and what became of it."""

    draft: PlanDraft
    cell: Cell

    @property
    def work(self) -> float:
        """The share of the work of the busiest device; of a model without multiplications 1."""
        return self.cell.work or 1.0


class Tries:
    """Tries texts on a model. `alone` is the plan of one device, whose warnings are about the model. Raises PlanError
    for a model that has no plan at all."""

    def __init__(self, trials: Trials) -> None:
        self.trials = trials
        self.graph = trials.workspace.graph
        device = Width("dp", "D", 1, "devices: no statement divides this model")
        draft = PlanDraft((device,), about=("one device",))
        cell = self.cell(draft.text)
        if not cell.is_proved:
            raise PlanError(cell.reason) if cell.reason is not None else InternalError(cell.fault)
        self._of_model = {d.code for d in cell.warnings}
        self.alone = Chosen(draft, cell)

    def cell(self, text: str) -> Cell:
        """What becomes of the text of a plan."""
        return self.trials.cell(PlanText("plan", Source("plan.ssp", text)), {})

    def proves(self, cell: Cell) -> bool:
        """Whether a plan is proved, and all of its statements have an effect: else there is a warning."""
        return cell.is_proved and {d.code for d in cell.warnings} <= self._of_model

    def of(self, draft: PlanDraft) -> Chosen | None:
        """The draft with what becomes of it, if that is proved."""
        cell = self.cell(draft.text)
        return Chosen(draft, cell) if self.proves(cell) else None
