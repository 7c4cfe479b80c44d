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
    """One call of `engine.step`, on these rows, or on what the loader yields next.

    `length`: of the sequences, if it is not the example's. Of several losses it trains `loss`, or their sum, and of
    several optimizers `part` steps.
    """

    rows: Rows | None
    clip: float | None = None
    update: bool = True
    scale: float = 1.0
    length: int | None = None
    loss: str | None = None
    part: int = 0


@dataclass(frozen=True, slots=True)
class Evaluate:
    """`engine.evaluate` of these batches."""

    batches: tuple[Rows, ...]
    loss: str | None = None


@dataclass(frozen=True, slots=True)
class Predict:
    """`engine.predict` of all that the forward returns, or of these results."""

    rows: Rows
    length: int | None = None
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Save:
    """`engine.save`."""


@dataclass(frozen=True, slots=True)
class Resume:
    """`engine.resume` in the middle: what follows the last save is undone."""


Action = Train | Evaluate | Predict | Save | Resume


@dataclass(frozen=True, slots=True)
class Run:
    """A script from its start to its end, under a plan."""

    plan: tuple[str, ...]
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class Use:
    """A program: a model, the number of samples in its data, what trains it, and its runs.

    A batch has `size` of them. With `shuffle` None batches are given by their rows, else a loader yields them, in order
    or shuffled. With `parts` each of these patterns of weights has an optimizer of its own.
    """

    recipe: Recipe
    size: int
    samples: int
    optimizer: str
    runs: tuple[Run, ...]
    is_autocast: bool = False
    is_scheduled: bool = False
    shuffle: bool | None = None
    parts: tuple[str, ...] = ()

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
        if self.parts:
            plain = (replace(run, actions=tuple(map(_without_part, run.actions))) for run in self.runs)
            yield replace(self, parts=(), runs=tuple(plain))
        yield replace(self, is_scheduled=False)
        yield replace(self, is_autocast=False)
        yield replace(self, optimizer="sgd")
        for n, run in enumerate(self.runs):
            for k, action in enumerate(run.actions):
                if isinstance(action, Train):
                    plain = replace(action, clip=None, update=True, scale=1.0, length=None, loss=None)
                    yield self._with(n, actions=(*run.actions[:k], plain, *run.actions[k + 1 :]))
        for recipe in self.recipe.smaller():
            if recipe.batch == self.recipe.batch and len(recipe.layers) == len(self.recipe.layers):
                yield replace(self, recipe=recipe)

    def _with(self, number: int, **changes: object) -> "Use":
        run = replace(self.runs[number], **changes)  # type: ignore[arg-type]
        return replace(self, runs=(*self.runs[:number], run, *self.runs[number + 1 :]))


def _without_part(action: Action) -> Action:
    return replace(action, part=0) if isinstance(action, Train) else action


OPTIMIZERS = ("sgd", "momentum", "adamw", "adamw", "amsgrad", "rmsprop")
SMOOTH = ("projections and norms", "attention", "attention over images and windows")
LOSSES = ("loss", "second")  # of a model that returns all
PARTS = ("front.*|h.*", "head.*")  # weights that have an optimizer of their own
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
            precision, returns_all = "float32" if is_autocast else "float64", draw.random() < 0.5
            return replace(recipe, precision=precision, returns_all=returns_all), is_autocast


def draw_use(draw: Random, recipe: Recipe, is_autocast: bool, model: Model, graph: Graph) -> Use:
    """What is done with a model."""
    size = next(iter(model.batches[0].values())).shape[0]
    samples = SIZES * size - draw.choice([0, 0, 0, *range(1, size)])
    shuffle = draw.choice([None, None, False, True])
    parts = PARTS if recipe.returns_all and not recipe.is_tied and draw.random() < 0.4 else ()
    drawn = _Actions(draw, recipe, size, samples, shuffle is None, draw.choice([None, None, 0.05, 1.0]), len(parts))
    runs = tuple(Run(_fitting(draw, graph), tuple(drawn.of_run())) for _ in range(draw.choice([1, 2, 2, 3])))
    is_scheduled = draw.random() < 0.3 and not parts
    return Use(recipe, size, samples, draw.choice(OPTIMIZERS), runs, is_autocast, is_scheduled, shuffle, parts)


def _fitting(draw: Random, graph: Graph) -> tuple[str, ...]:
    """A plan that compiles for a whole batch, if one is found soon; it trains the model as it is, as what a script does
    is compared with the module itself."""
    for _ in range(TRIES):
        plan = tuple(s for s in draw_plan(draw, graph) if not s.startswith(("precision ", "compress ")))
        with contextlib.suppress(PlanError):
            lower(interpret_all(parse(Source("plan.ssp", "\n".join(plan) + "\n")), graph, {}, None)[0])
            break
    return plan


@dataclass(slots=True)
class _Actions:
    """Draws what a script does with batches of `size` rows, or with those that a loader yields."""

    draw: Random
    recipe: Recipe
    size: int
    samples: int
    by_rows: bool
    clip: float | None
    parts: int

    def of_run(self) -> Iterator[Action]:
        """Some steps, each of so many micro-batches, with evaluations, predictions, saves and returns between them."""
        draw, counts = self.draw, self.draw.choice([1, 1, 2, 3])
        loss, part = self.loss(), self.part()
        for number in range(draw.randint(1, 5)):
            updates = number % counts == counts - 1
            rows = self.rows() if self.by_rows else None
            yield Train(rows, self.clip, updates, 1 / counts, self.length() if rows else None, loss, part)
            if updates:
                loss, part = self.loss(), self.part()
            if draw.random() < 0.25:
                yield Evaluate(tuple(draw.sample(self.pieces(), draw.randint(1, len(self.pieces())))), self.loss())
            if self.recipe.returns_all and draw.random() < 0.3:
                yield Predict(self.rows(), self.length(), draw.choice([(), (), ("x",), ("some.1.half", "ones")]))
            if draw.random() < 0.3:
                yield Save()
            if draw.random() < 0.1:
                yield Resume()
        if draw.random() < 0.8:
            yield Save()

    def pieces(self) -> list[Rows]:
        return [(first, min(self.size, self.samples - first)) for first in range(0, self.samples, self.size)]

    def rows(self) -> Rows:
        return self.draw.choice(self.pieces())

    def length(self) -> int | None:
        """Of the sequences, mostly the example's."""
        if not self.recipe.takes_any_length or self.draw.random() < 0.6:
            return None
        return self.draw.choice([self.recipe.seq - 1, self.recipe.seq // 2, 2 * self.recipe.seq, self.recipe.seq + 1])

    def loss(self) -> str | None:
        """One of several losses, or their sum."""
        return self.draw.choice([None, *LOSSES]) if self.recipe.returns_all else None

    def part(self) -> int:
        return self.draw.randrange(self.parts) if self.parts else 0


Claim = Callable[[Use, list[Action]], bool]
USED: dict[str, Claim] = {
    "several runs": lambda use, actions: len(use.runs) > 1,
    "resuming in a run": lambda use, actions: any(isinstance(a, Resume) for a in actions),
    "evaluation": lambda use, actions: any(isinstance(a, Evaluate) for a in actions),
    "clipping": lambda use, actions: use.clips,
    "accumulation": lambda use, actions: any(isinstance(a, Train) and not a.update for a in actions),
    "a loader": lambda use, actions: use.shuffle is not None,
    "an odd last batch": lambda use, actions: use.samples % use.size != 0,
    "other lengths": lambda use, actions: any(getattr(a, "length", None) is not None for a in actions),
    "several losses": lambda use, actions: any(getattr(a, "loss", None) is not None for a in actions),
    "several optimizers": lambda use, actions: bool(use.parts),
    "predict": lambda use, actions: any(isinstance(a, Predict) for a in actions),
    "autocast": lambda use, actions: use.is_autocast,
    "a scheduler": lambda use, actions: use.is_scheduled,
}
