"""What the plans that come with ssdsl make of a model: each is tried under some settings of its params."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest

from ssdsl.lang.read import read_source
from ssdsl.lang.shipped import example_plans, shipped_plans
from ssdsl.matrix.cell import Cell, CellOutcome, PlanText
from ssdsl.matrix.trials import Trials
from ssdsl.plan.declarations import declarations
from ssdsl.record import Record
from ssdsl.sketch.setting import Setting, best_of
from ssdsl.sketch.sketch import Sketch, Values, sketch_of

TRIES, OF_PAPERS = 30, 4  # settings of a plan; of a plan of a paper, which is made for other models
NEAR = 10  # settings near to the defaults that are tried first
ENOUGH = 4  # settings that fit: among these the best is chosen
MOST = 5_000  # settings that are put in order


class PlanOnModel(Record):
    """A plan on a model: what became of the settings that were tried, of so many; `is_more` if there are more."""

    plan: str
    cells: tuple[Cell, ...]
    settings: int
    is_more: bool = False
    of_paper: bool = False

    @property
    def divided(self) -> tuple[Cell, ...]:
        """The proved settings in which each device has a part of the work."""
        return tuple(cell for cell in self.cells if cell.is_proved and divides(cell))

    @property
    def best(self) -> Cell | None:
        """Of the proved settings the one to show: the first, or where steps are simulated the best that fits, else the
        nearest to fit. One that divides no work comes last. None if none is proved."""
        found = self.divided or tuple(cell for cell in self.cells if cell.is_proved)
        if not found or found[0].report is None:
            return next(iter(found), None)
        settings = {id(cell): Setting(cell.params, cell.report) for cell in found}
        best = best_of(tuple(settings.values()))
        if best is not None:
            return next(cell for cell in found if settings[id(cell)] is best)
        return min(found, key=lambda cell: settings[id(cell)].over)

    @property
    def setting(self) -> Setting | None:
        """The simulated step of the setting to show."""
        best = self.best
        return Setting(best.params, best.report) if best is not None and best.report is not None else None

    @property
    def is_good(self) -> bool:
        """Whether a setting is proved, divides work, and fits where its step is simulated."""
        return bool(self.divided) and not (self.setting is not None and self.setting.over)


def plans_on_model(trials: Trials, devices: range) -> Iterator[PlanOnModel]:
    """Each shipped plan on the model, for a number of devices in a range; those of papers last."""
    general = {path.stem for path in example_plans()}
    for name, path in sorted(shipped_plans(), key=lambda pair: pair[0] not in general):
        text = PlanText(name, read_source(path), path.parent)
        if name in general or declarations(text.script).is_plan:
            of_paper = name not in general
            yield plan_on_model(trials, text, devices, of_paper, OF_PAPERS if of_paper else TRIES)


def plan_on_model(
    trials: Trials, text: PlanText, devices: range, of_paper: bool = False, most: int = TRIES
) -> PlanOnModel:
    """A plan on a model. Settings near to its defaults are tried first. Without a cluster the first good one is enough,
    with one the best of a few that fit."""
    sketch = sketch_of(text.source, text.folder, trials.workspace.model, devices)
    settings = list(islice(sketch.settings(devices), MOST + 1))
    left = list(_in_turn(sketch, settings))
    cells, blamed = list[Cell](), Counter[tuple[str, int]]()
    good, enough = 0, 1 if trials.on is None else ENOUGH
    for number in range(most):
        if not left or good >= enough or (number >= NEAR and good):
            break
        far = number >= NEAR  # nothing near to the defaults is proved: what has least in common with what is refused
        params = left.pop(min(range(len(left)), key=lambda n: sum(blamed[p] for p in left[n].items())) if far else 0)
        cell = trials.cell(text, sketch.overrides(params))
        if cell.is_proved and cell.devices not in devices:  # the text does not tell the number of devices
            continue
        if not cell.is_proved:
            blamed.update(params.items())
        cells.append(cell)
        good += _is_good(cell)
    return PlanOnModel(text.name, tuple(cells), min(len(settings), MOST), len(settings) > MOST, of_paper)


def _is_good(cell: Cell) -> bool:
    fits = cell.report is None or not cell.report.over_bytes
    return cell.outcome is CellOutcome.PROVED and divides(cell) and fits


def divides(cell: Cell) -> bool:
    """Whether each device has a part of the work."""
    return cell.work is not None and cell.work < 1 - 1e-9


def _in_turn(sketch: Sketch, settings: Sequence[Values]) -> Iterator[Values]:
    """The settings, those first that change few defaults; and in turn those that change others, because a plan is
    mostly refused for one number. Within these the numbers nearest to the defaults come first."""
    default = sketch.default
    groups: dict[tuple[str, ...], list[Values]] = {}
    for values in settings:
        groups.setdefault(tuple(name for name in default if values[name] != default[name]), []).append(values)
    queues = [
        sorted(groups[names], key=lambda v: [abs(v[name] - default[name]) for name in names])
        for names in sorted(groups, key=len)
    ]
    for turn in zip_longest(*queues):
        yield from (values for values in turn if values is not None)
