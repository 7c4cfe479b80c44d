"""Compiles programs for a training script: rank 0 compiles and sends the result to the other ranks."""

import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from pathlib import Path

import torch

from ssdsl.codegen.write import program_files
from ssdsl.compile import compile_evaluation, compile_resized, compile_source
from ssdsl.ir.program import Kernels
from ssdsl.lang.parse import parse
from ssdsl.lang.read import read_source
from ssdsl.lang.shipped import plan_path
from ssdsl.model.capture.initial_state import constants_of, state_names
from ssdsl.model.checks.check_capture import check_capture
from ssdsl.model.graph import Graph
from ssdsl.model.load.model import Model, computing, with_sizes
from ssdsl.model.module_to_graph import capture
from ssdsl.runtime.errors import EngineError
from ssdsl.runtime.program.initial_state import InitialState
from ssdsl.runtime.program.program import CompiledProgram
from ssdsl.runtime.ranks.control import Control
from ssdsl.runtime.train.programs import Variant
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render
from ssdsl.workspace import Compiled

Tensors = dict[str, torch.Tensor]


class Live:
    """Compiles on rank 0 the programs that the engine asks for. Called by all ranks alike."""

    def __init__(
        self,
        path: Path,
        model: Model,
        params: Mapping[str, int],
        control: Control,
        kernels: Kernels = Kernels.EAGER,
    ) -> None:
        self.path, self.model, self.params, self.control, self.kernels = path, model, params, control, kernels
        self._constants: Tensors = {}
        self.training = self._program("", self._train)
        self.state = self._state()

    @property
    def losses(self) -> tuple[str, ...]:
        """The names of the model's losses, if it has several."""
        return self.model.losses

    def other(self, variant: Variant, described: str) -> CompiledProgram:
        """A program beside that of training, of the same plan, on the same weights."""
        model = with_sizes(self.model, dict(variant.sizes)) if variant.sizes else self.model
        model = model.with_loss(variant.loss) if variant.loss is not None else model

        def make() -> Compiled:
            if variant.kind == "train":
                return compile_resized(self._trains, _captured(model))
            return compile_evaluation(self._trains, computing(model), variant.outputs)

        words = [
            " for evaluation" if variant.kind == "evaluate" else "",
            f" for the loss `{variant.loss}`" if variant.loss is not None else "",
            f" for {described}" if variant.sizes else "",
        ]
        program = self._program("".join(words), make)
        self.state.tensors = {**self._constants, **self.state.tensors}
        return program

    def replanned(self, plan: str, params: Mapping[str, int] | None) -> "Live":
        """The programs of the same model under another plan: a file, or one that comes with ssdsl."""
        with self.control.together(), rendered():
            path = plan_path(plan)
        found = copy(self)
        found.path, found.params, found._constants = path, params or {}, {}
        found.training = found._program("", found._train)
        found.state.tensors = {**found._constants, **found.state.tensors}
        return found

    @property
    def plan(self) -> str:
        """The text of the plan."""
        return self.path.read_text()

    # -- compiling -----------------------------------------------------------------------------------------------------

    def _train(self) -> Compiled:
        source = read_source(self.path)
        parse(source)  # reports a mistake in the plan's text before the model is captured
        graph, folder = _captured(self.model), self.path.parent
        self._trains = compile_source(source, graph, self.params, folder, kernels=self.kernels)
        for remark in self.model.remarks:
            print(render(remark), file=sys.stderr, flush=True)
        return self._trains

    def _program(self, what: str, make: Callable[[], Compiled]) -> CompiledProgram:
        """A program made by rank 0, on all ranks; if rank 0 fails, all raise EngineError with its diagnostics."""
        texts: dict[str, str] = {}
        constants: Tensors = {}  # weights on the meta device have recipes
        with self.control.together():
            if self.control.rank == 0:
                with rendered(), _bugs_as_engine_errors(), _reported(f"{self.path.name}{what}"):
                    made = make()
                    for warning in made.warnings:
                        print(render(warning), file=sys.stderr, flush=True)
                    program = made.program
                    texts = program_files(program, self.model.precision)
                    constants = {n: t for n, t in constants_of(program.graph).items() if not t.is_meta}
        texts, constants = _sent(texts, constants, self.control)
        self._constants |= constants
        return CompiledProgram.of(texts, InitialState({}), [])

    def _state(self) -> InitialState:
        """The initial state, which is rank 0's on all ranks, as in DDP."""
        model = self.model
        if model.recipes is None:
            apart = {(t.data_ptr(), t.shape, t.stride()): t for t in model.module.state_dict().values()}
            for tensor in apart.values():  # tied ones once
                self.control.share(tensor)
        tensors = {n: t.detach() for n, t in model.module.state_dict().items() if not t.is_meta}
        return InitialState(self._constants | tensors, model.recipes, state_names(model.module))


@contextmanager
def rendered() -> Iterator[None]:
    """A context in which diagnostics become an EngineError with their text."""
    try:
        yield
    except PlanError as error:
        raise EngineError("\n".join(map(render, error.diagnostics))) from error


@contextmanager
def _bugs_as_engine_errors() -> Iterator[None]:
    """A context in which a bug of ours becomes an EngineError: other ranks must not wait for a rank that is gone."""
    try:
        yield
    except PlanError:
        raise
    except Exception as error:
        traceback.print_exception(error)
        raise EngineError(f"compiling failed: {error!r}", "report it with the lines above: a bug of ssdsl") from error


@contextmanager
def _reported(what: str) -> Iterator[None]:
    """Prints to stderr that the plan is compiled, which may take a minute, and how long it took."""
    print(f"compiling {what} ...", file=sys.stderr, flush=True)
    start = time.perf_counter()
    yield
    print(f"compiled {what} in {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)


def _captured(model: Model) -> Graph:
    """The model's graph in its precision; raises PlanError."""
    model = computing(model)
    graph = capture(model)
    check_capture(model, graph)
    return graph


def _sent(texts: dict[str, str], constants: Tensors, control: Control) -> tuple[dict[str, str], Tensors]:
    """Rank 0's program, its files and its constants, on all ranks."""
    about = [(name, str(t.dtype).removeprefix("torch."), list(t.shape)) for name, t in constants.items()]
    texts, about = json.loads(control.broadcast(json.dumps([texts, about]).encode()))
    found = {}
    for name, dtype, shape in about:
        found[name] = constants[name] if control.rank == 0 else torch.empty(shape, dtype=getattr(torch, dtype))
        control.share(found[name])
    return texts, found
