"""Finds the graph that `--model` names: in a file, in the cache of an earlier command, or by capturing it now.

Neither torch nor the model is loaded, unless the graph has to be captured or something asks for the module itself.
"""

import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ssdsl.collector import paused_collector
from ssdsl.lang.header import GRAPH
from ssdsl.model.cache import entries
from ssdsl.model.cache.sources import Sources, is_installed, noted
from ssdsl.model.graph import Graph
from ssdsl.model.graph_errors import GraphOfOtherPrecision, GraphUnreadable, GraphWithoutModel, TorchMissing
from ssdsl.model.graph_file import BadGraphFile, read_graph
from ssdsl.record import Record, as_dict, replace
from ssdsl.text.diagnostic import Diagnostic, PlanError

if TYPE_CHECKING:
    from ssdsl.model.load.model import Model
    from ssdsl.runtime.random.counter_rng import Generator

Working = Callable[[str], contextlib.AbstractContextManager[None]]  # says what takes so long


def _silent(what: str) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


class ModelRequest(Record):
    """A model of the command line. `precision` is "bf16" or "fp16"; where nothing `trains`, a large model is built
    without numbers."""

    spec: str
    seed: int = 0
    generator: "Generator" = "hash"
    meta: bool = False
    precision: str | None = None
    trains: bool = False


class Captured(Record, dict=True):
    """A graph, and how it was compared with the module; `is_compared` says that nothing is left to compare.

    `remarks` are warnings of how the model was built. `not_kept` is the reason why the next command will not find the
    graph in the cache, if there is one. `origin` is the model that a graph from a file was captured from.
    """

    request: ModelRequest
    graph: Graph
    comparison: str
    is_compared: bool
    remarks: tuple[Diagnostic, ...] = ()
    not_kept: str = ""
    origin: str = ""
    built: "Model | None" = None

    @cached_property
    def model(self) -> "Model":
        """The model itself, built now if it was not before. Raises PlanError, also for a graph from a file."""
        if self.origin:
            raise PlanError(GraphWithoutModel(None, self.request.spec, f"--model {self.origin}"))
        return self.built or build(self.request)


@paused_collector()
def captured(request: ModelRequest, working: Working = _silent, keep: bool = True) -> Captured:
    """The graph of a model; with `keep` it is read from the cache, or written there. Raises PlanError."""
    if request.spec.endswith(GRAPH):
        return _from_file(request)
    _forget_imports()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # models are built from their configs: nothing is ever downloaded
    asked = entries.question(as_dict(request))
    if keep and (known := entries.find(asked)) is not None:
        graph, header = known
        return Captured(request, graph, header["comparison"], header["is_compared"])
    with working("loading torch"):
        if importlib.util.find_spec("torch") is None:
            raise PlanError(TorchMissing(None, request.spec))
        from ssdsl.model.checks.check_capture import check_if_small
        from ssdsl.model.load.model import computing
        from ssdsl.model.module_to_graph import capture
    recording = noted() if keep else contextlib.nullcontext(Sources())
    with working(f"capturing {request.spec}"), _noted_imports(), recording as sources:
        model = build(request)
        graph = capture(computing(model))
        comparison = check_if_small(computing(model), graph)
    header = {
        "model": request.spec,
        "comparison": str(comparison),
        "is_compared": comparison.is_compared,
    }
    may_keep = keep and not model.remarks
    not_kept = entries.keep(asked, graph, sources, header) if may_keep else ""
    return Captured(request, graph, header["comparison"], header["is_compared"], model.remarks, not_kept, built=model)


def build(request: ModelRequest) -> "Model":
    """The model itself; raises PlanError."""
    from ssdsl.model.load import load

    given = load(
        request.spec,
        seed=request.seed,
        generator=request.generator,
        meta=request.meta or None,
        trains=request.trains,
    )
    return replace(given, precision=request.precision)


_imports: list[tuple[set[str], list[str]]] = []  # by captures: names of modules, folders on the path


@contextlib.contextmanager
def _noted_imports() -> Iterator[None]:
    """A context in which new modules, and new folders on the path, are noted for `_forget_imports`."""
    modules, path = set(sys.modules), list(sys.path)
    try:
        yield
    finally:
        _imports.append((sys.modules.keys() - modules, [folder for folder in sys.path if folder not in path]))


def _forget_imports() -> None:
    """Forgets the user's modules that earlier captures of this process imported: their files may have changed."""
    for names, folders in _imports:
        # all are known before one is gone: a folder without `__init__.py` asks the package around it where it is
        for name in [name for name in names & sys.modules.keys() if _is_theirs(sys.modules[name])]:
            del sys.modules[name]
        sys.path[:] = (folder for folder in sys.path if folder not in folders)
    _imports.clear()
    importlib.invalidate_caches()


def _is_theirs(module: ModuleType) -> bool:
    """Whether a module is the user's: it has a file, or is a folder, that is not installed."""
    place = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    return isinstance(place, str) and not is_installed(place)


def _from_file(request: ModelRequest) -> Captured:
    try:
        graph, header = read_graph(Path(request.spec))
    except OSError as error:
        raise PlanError(GraphUnreadable(None, request.spec, (error.strerror or str(error)).lower())) from error
    except BadGraphFile as error:
        raise PlanError(GraphUnreadable(None, request.spec, str(error))) from error
    known: dict[str, Any] = {"comparison": "", "model": graph.name, "precision": None} | header
    if request.precision not in (None, known["precision"]):
        raise PlanError(
            GraphOfOtherPrecision(None, request.spec, known["model"], request.precision, known["precision"])
        )
    request = replace(request, precision=known["precision"])
    return Captured(request, graph, str(known["comparison"]), False, origin=str(known["model"]))
