"""`ssdsl.search`: searches as `ssdsl search` does, and returns a report that scripts and notebooks can show."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ssdsl.cluster.cluster import Cluster
from ssdsl.cluster.load import load_cluster
from ssdsl.kernel_choice import kernel_choice
from ssdsl.model.captured import ModelRequest, captured
from ssdsl.model.graph import Graph
from ssdsl.record import Record
from ssdsl.show.cell import cell_of, text_of
from ssdsl.show.tables.search import search_views
from ssdsl.show.tables.sweep_html import sweep_html
from ssdsl.simulate.profile.read_costs import read_whole_costs
from ssdsl.sketch.answers.write import save_plan, written
from ssdsl.sketch.by import By
from ssdsl.sketch.reasons import notes
from ssdsl.sketch.result import SearchResult, Tried
from ssdsl.sketch.search import TRIES, search_of
from ssdsl.sketch.sketch import wanted_devices
from ssdsl.sketch.texts import read_texts
from ssdsl.text.diagnostic import PlanError

if TYPE_CHECKING:
    from ssdsl.model.load.model import Model

MODEL = "make one of the module and a batch, ssdsl.model_of(module, batch), or give a name, as for --model"


class SearchReport(Record):
    """The result of a search: `best` is None if no plan fits, `rows` are the best plans, `families` the best plan of
    each kind of parallelism. `print` and a notebook's cell show the tables of `ssdsl search`."""

    found: SearchResult
    graph: Graph
    cluster: Cluster
    top: int

    @property
    def best(self) -> Tried | None:
        """The best plan that fits: `best.values` are its params, with those set by `params`; `best.report` is its
        simulated step."""
        return self.found.best

    @property
    def baseline(self) -> Tried:
        """The plan that all others are compared with."""
        return self.found.baseline

    @property
    def rows(self) -> tuple[Tried, ...]:
        """The best plans, the best first."""
        return self.found.ranked[: self.top]

    @property
    def families(self) -> tuple[Tried, ...]:
        """The best plan of each kind of parallelism, the best first."""
        return self.found.best_of_families()

    def text(self, tried: Tried | None = None) -> str:
        """The text of a plan with its params as defaults; by default the best plan. Raises ValueError if no plan
        fits."""
        if (chosen := tried or self.best) is None:
            raise ValueError("no plan fits")
        return written(chosen.sketch, chosen.setting.params, notes(self.found, chosen))

    def write(self, file: str | os.PathLike[str]) -> None:
        """Writes the best plan to a file, and beside it the files that it uses. Raises PlanError if one cannot be
        written, ValueError where no plan fits."""
        text = self.text()
        assert self.best is not None, "its text is known"
        save_plan(self.best.sketch, text, os.fspath(file))

    def __str__(self) -> str:
        return text_of(search_views(self._title, self.found, self.graph, self.cluster, self.top))

    def _repr_html_(self) -> str:
        page = sweep_html(self._title, tuple(t.setting for t in (self.found.baseline, *self.found.tried)))
        return cell_of(str(self), page)

    @property
    def _title(self) -> str:
        return f"search for {self.graph.name} on {self.cluster.name}"


def search(
    plans: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    model: "str | Model",
    cluster: str = "laptop",
    *,
    costs: str | os.PathLike[str] | None = None,
    kernels: str = "eager",
    baseline: str | os.PathLike[str] | None = None,
    params: Mapping[str, int | Sequence[int]] | None = None,
    devices: int | Sequence[int] | None = None,
    memory: float = 1.0,
    by: str = "devices",
    tries: int = TRIES,
    seconds: float = float("inf"),
    top: int = 5,
    orders: bool = True,
    meta: bool = False,
) -> SearchReport:
    """Searches what plans leave open, for a model on a cluster. The plans that it returns are proved.

    - `plans`: files, or names of plans that come with ssdsl; None means all of these.
    - `model`: as in `--model`, or from `ssdsl.model_of`. With `meta` a large one is made without its numbers.
    - `cluster`: a name or a file. `costs`: a file of measured times.
    - `kernels`: how operators run, as `--kernels` says.
    - `baseline`: the plan that others are compared with, by default the first.
    - `params`: sets params to a number, or to several that are tried.
    - `devices`: how many devices a plan takes, by default all of the cluster. Of several numbers, the smallest and the
      largest bound a range, and the search looks for the best use of each device.
    - `memory`: the share of each device's memory that a plan may need, above 0 and at most 1.
    - `by`: plans are ranked by their use of "devices", or by the "cost" of a step.
    - `tries`, `seconds`: the search simulates at most so many settings, and takes so long or a little more.
    - `top`: how many of the best plans `rows` has.
    - `orders`: whether other cuts and orders of pipelines are tried, too.

    Raises PlanError for mistakes in plans, model or cluster, ValueError for numbers out of range.
    """
    for name, number in {"tries": tries, "top": top}.items():
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"`{name}` is a whole number of at least 1, not {number!r}")
    if not seconds > 0:
        raise ValueError(f"`seconds` is more than 0, not {seconds!r}")
    how = kernel_choice(kernels).kernels
    on = load_cluster(cluster)
    graph = graph_of(model, meta)
    span = (on.size,) if devices is None else _numbers("devices", devices)
    wanted = wanted_devices(min(span), max(span), on)
    if not 0 < memory <= 1:
        raise ValueError(f"memory is a share of a device's, above 0 and at most 1, not {memory}")
    named = [plans] if isinstance(plans, str | os.PathLike) else list(plans or ())
    asked = {name: _numbers(name, given) for name, given in (params or {}).items()}
    times = read_whole_costs(Path(costs)) if costs is not None else None
    if by not in [*By]:
        raise ValueError(f"plans are ranked by {' or '.join(map(repr, map(str, By)))}, not by {by!r}")
    texts = read_texts(named, baseline)
    work = search_of(graph, on, texts, wanted, asked, memory=memory, costs=times, kernels=how, by=By(by))
    *_, found = work.results(tries, seconds, orders, top)
    return SearchReport(work.proved(found, top), graph, on, top)


def graph_of(model: "str | Model", meta: bool) -> Graph:
    """The graph of a model. For a name, the cached graph where a command has captured it before."""
    if isinstance(model, str):
        return captured(ModelRequest(model, meta=meta)).graph
    from ssdsl.model.load.errors import BadModel
    from ssdsl.model.load.model import Model, computing  # which loads torch, as the model did
    from ssdsl.model.module_to_graph import capture
    from ssdsl.runtime.data.batch import kind

    if not isinstance(model, Model):
        raise PlanError(BadModel(None, f"the model is {kind(model)}, not a model of ssdsl", MODEL))
    return capture(computing(model))


def _numbers(name: str, given: int | Sequence[int]) -> tuple[int, ...]:
    """The numbers given for a param, or for devices. Raises ValueError for what is no whole number."""
    numbers = tuple(given) if isinstance(given, Iterable) else (given,)
    if not numbers or not all(isinstance(n, int) for n in numbers):
        raise ValueError(f"`{name}` is a whole number, or several that are tried, not {given!r}")
    return numbers
