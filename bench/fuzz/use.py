"""Programs of use: what training scripts do with an engine, at random; each run of a script has a plan of its own.

A program is a list of runs. A run makes the optimizer, its scheduler and its loader, resumes what was saved last, and
carries out its actions; what it does behind its last save is lost.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from bench.fuzz.layers import ROW_OF
from bench.fuzz.models import Recipe
from bench.fuzz.plans import draw_plan
from bench.fuzz.recipes import draw_recipe
from bench.fuzz.shrink import simpler_plans
from ssdsl.lang.parse import parse
from ssdsl.lower.lower import lower
from ssdsl.model.graph import Graph
from ssdsl.model.load.model import Model
from ssdsl.plan.interpret import interpret_all
from ssdsl.record import replace
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source

Rows = tuple[int, int]  # of the data: the first, and how many


@dataclass(frozen=True, slots=True)
class Train:
    """One call of `engine.step`, on these rows, or on what the loader yields next."""

    rows: Rows | None
    clip: float | None = None
    update: bool = True
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Evaluate:
    """`engine.evaluate` of these batches."""

    batches: tuple[Rows, ...]


@dataclass(frozen=True, slots=True)
class Save:
    """`engine.save`."""


@dataclass(frozen=True, slots=True)
class Resume:
    """`engine.resume` in the middle: what follows the last save is undone."""


Action = Train | Evaluate | Save | Resume


@dataclass(frozen=True, slots=True)
class Run:
    """A script from its start to its end, under a plan."""

    plan: tuple[str, ...]
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class Use:
    """A program: a model, the number of samples in its data, what trains it, and its runs.

    A batch has `size` of them. With `shuffle` None batches are given by their rows, else a loader yields them, in order
    or shuffled.
    """

    recipe: Recipe
    size: int
    samples: int
    optimizer: str
    runs: tuple[Run, ...]
    is_autocast: bool = False
    is_scheduled: bool = False
    shuffle: bool | None = None

    @property
    def clips(self) -> bool:
        return any(isinstance(a, Train) and a.clip is not None for run in self.runs for a in run.actions)

    @property
    def rows(self) -> tuple[str, ...]:
        """The rows of the report that it counts in."""
        actions = [action for run in self.runs for action in run.actions]
        return tuple(name for name, claim in USED.items() if claim(self, actions))

    def smaller(self) -> Iterator["Use"]:
        """Programs that are one step simpler."""
        for n, run in enumerate(self.runs):
            if len(self.runs) > 1:
                yield replace(self, runs=self.runs[:n] + self.runs[n + 1 :])
            yield from (self._with(n, actions=run.actions[:k] + run.actions[k + 1 :]) for k in range(len(run.actions)))
        yield from (self._with(n, plan=plan) for n, run in enumerate(self.runs) for plan in simpler_plans(run.plan))
        yield replace(self, is_scheduled=False)
        yield replace(self, is_autocast=False)
        yield replace(self, optimizer="sgd")
        for n, run in enumerate(self.runs):
            for k, action in enumerate(run.actions):
                if isinstance(action, Train):
                    plain = replace(action, clip=None, update=True, scale=1.0)
                    yield self._with(n, actions=(*run.actions[:k], plain, *run.actions[k + 1 :]))
        for recipe in self.recipe.smaller():
            if recipe.batch == self.recipe.batch and len(recipe.layers) == len(self.recipe.layers):
                yield replace(self, recipe=recipe)

    def _with(self, number: int, **changes: object) -> "Use":
        run = replace(self.runs[number], **changes)  # type: ignore[arg-type]
        return replace(self, runs=(*self.runs[:number], run, *self.runs[number + 1 :]))


OPTIMIZERS = ("sgd", "momentum", "adamw", "adamw", "amsgrad", "rmsprop")
SMOOTH = ("projections and norms", "attention", "attention over images and windows")
SIZES, TRIES = 3, 5  # batches that the data are; plans that are drawn until one compiles


def draw_model(draw: Random) -> tuple[Recipe, bool]:
    """A model, and whether it is autocast: then it is of layers in which a small difference stays small."""
    is_autocast = draw.random() < 0.2
    while True:
        recipe = replace(draw_recipe(draw), meta=False, batches=1)
        names = [name for name, _ in recipe.layers]
        is_smooth = all(ROW_OF[name] in SMOOTH and name != "Cast" for name in names)
        is_dense = recipe.front != "sparse" and not any("sparse" in given for _, given in recipe.layers)
        if is_dense and (is_smooth or not is_autocast):
            return replace(recipe, precision="float32" if is_autocast else "float64"), is_autocast


def draw_use(draw: Random, recipe: Recipe, is_autocast: bool, model: Model, graph: Graph) -> Use:
    """What is done with a model."""
    size = next(iter(model.batches[0].values())).shape[0]
    samples = SIZES * size - draw.choice([0, 0, 0, *range(1, size)])
    shuffle = draw.choice([None, None, False, True])
    clip, counts = draw.choice([None, None, 0.05, 1.0]), draw.choice([1, 1, 2, 3])
    runs = tuple(
        Run(_fitting(draw, graph), tuple(_actions(draw, size, samples, shuffle is None, clip, counts)))
        for _ in range(draw.choice([1, 2, 2, 3]))
    )
    return Use(recipe, size, samples, draw.choice(OPTIMIZERS), runs, is_autocast, draw.random() < 0.3, shuffle)


def _fitting(draw: Random, graph: Graph) -> tuple[str, ...]:
    """A plan that compiles for a whole batch, if one is found soon."""
    for _ in range(TRIES):
        plan = draw_plan(draw, graph)
        with contextlib.suppress(PlanError):
            lower(interpret_all(parse(Source("plan.ssp", "\n".join(plan) + "\n")), graph, {}, None)[0])
            break
    return plan


def _actions(
    draw: Random, batch: int, samples: int, by_rows: bool, clip: float | None, counts: int
) -> Iterator[Action]:
    """Some steps, each of so many micro-batches, with evaluations, saves and returns between them."""
    pieces = [(first, min(batch, samples - first)) for first in range(0, samples, batch)]
    for number in range(draw.randint(1, 5)):
        rows = draw.choice(pieces) if by_rows else None
        yield Train(rows, clip, update=number % counts == counts - 1, scale=1 / counts)
        if draw.random() < 0.25:
            yield Evaluate(tuple(draw.sample(pieces, draw.randint(1, len(pieces)))))
        if draw.random() < 0.3:
            yield Save()
        if draw.random() < 0.1:
            yield Resume()
    if draw.random() < 0.8:
        yield Save()


Claim = Callable[[Use, list[Action]], bool]
USED: dict[str, Claim] = {
    "several runs": lambda use, actions: len(use.runs) > 1,
    "resuming in a run": lambda use, actions: any(isinstance(a, Resume) for a in actions),
    "evaluation": lambda use, actions: any(isinstance(a, Evaluate) for a in actions),
    "clipping": lambda use, actions: use.clips,
    "accumulation": lambda use, actions: any(isinstance(a, Train) and not a.update for a in actions),
    "a loader": lambda use, actions: use.shuffle is not None,
    "an odd last batch": lambda use, actions: use.samples % use.size != 0,
    "autocast": lambda use, actions: use.is_autocast,
    "a scheduler": lambda use, actions: use.is_scheduled,
}
