"""Runs torch.export, and refuses everything in a forward that it would silently drop or change."""

import linecache
import re
import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import fx
from torch.distributions import Distribution

from ssdsl.model.capture.derivatives import NoDerivative
from ssdsl.model.capture.errors import (
    CONTROL_FLOW,
    GENERATOR,
    MASK,
    NUMBER,
    NUMPY,
    CaptureFailed,
    FlexFunction,
    NotALoss,
)
from ssdsl.model.capture.grad_mode_regions import regions_left_open, write_regions
from ssdsl.model.capture.known_masks import Selecting
from ssdsl.model.capture.known_numbers import Constants, Question, answering
from ssdsl.model.capture.module_error import own_failure, raised_by
from ssdsl.model.capture.on_meta import captured_batch
from ssdsl.model.capture.preserve import attributes_kept, patched, quiet, without_tensor_metadata
from ssdsl.model.capture.source_line import Place, is_own, module_name, of_function, own_span, raised
from ssdsl.model.checks.custom_gradient import wrong_gradients
from ssdsl.model.checks.errors import TensorChanged
from ssdsl.model.checks.hooks import lost_hooks
from ssdsl.model.checks.inplace_changes import lost_writes
from ssdsl.model.checks.python_state import check_attributes, snapshot
from ssdsl.model.checks.side_effects import SideEffects, recording
from ssdsl.model.evaluation_errors import missing_output
from ssdsl.model.load.model import Model
from ssdsl.model.load.outputs import Found, NoLoss, NoSuchOutput
from ssdsl.model.rewrite.experts_by_rows import experts_by_rows
from ssdsl.model.rewrite.masked_attention import NotOnAll, attention_as_operators
from ssdsl.record import Record
from ssdsl.runtime.program.returned import Leaf
from ssdsl.text.diagnostic import Diagnostic, PlanError

SYMBOLS = re.compile(r"(?<=symbols: )u\d+(, u\d+)*")
READ = re.compile(r"data-dependent expression \w+ |__format__")  # a number alone, not a comparison: `float(x)` reads it
ATTRIBUTE = re.compile(r"Constant (?:module\.)?(\S+) is mutated in the forward")
CTC = "give the lengths as tensors: their mean as numbers is computed where no graph can see it"
DISTRIBUTION = "leave the check of the arguments out: no `validate_args=True`"
ASSERTION = "leave the check out, or make it before the model is called: a graph checks no numbers"
ANOTHER_WAY = (
    "the forward takes another branch under torch.export, and fails there alone\n"
    "give the inputs that it else makes itself, such as `attention_mask`; leave out code that converts its modules"
)
DERIVATIVE = "take it by `torch.autograd.grad`, `torch.func.grad`, `vjp`, `jacrev` or `hessian`, or write it out"
RECOMPILE = fx.GraphModule.recompile


class LossOf(torch.nn.Module):
    """The module that is exported: it computes a model's loss from the tensors of a batch, and finds side effects."""

    def __init__(self, model: Model, effects: SideEffects, constants: Constants) -> None:
        super().__init__()
        self.module = model.module
        self.model = model
        self.effects = effects
        self.constants = constants

    def forward(self, *batch: torch.Tensor) -> Any:
        before = snapshot(self.module)
        self.constants.find(self.module)
        with (
            attention_as_operators(),
            experts_by_rows(),
            recording(self.effects),
            answering(self.constants),
            Selecting(self.constants),
        ):
            loss, found = self._results(dict(zip(self.model.batches[0], batch, strict=True)))
        self.effects.compare(before, self.module)
        self.effects.returned = found.leaves
        return (loss, found.tensors) if self.model.evaluation is not None else loss

    def _results(self, batch: dict[str, torch.Tensor]) -> tuple[Any, Found]:
        """The loss, and the outputs that an evaluation asks for."""
        try:
            return self.model.results(batch, self.module)
        except NoSuchOutput as error:
            self.effects.missing = missing_output(error.name, error.returned)
            raise


class Exported(Record):
    """A module with its loss as a graph in which regions are operators.

    `decisive` are the buffers that its control flow read, each with the first line that did, if that is known;
    `written` are the tensors that the forward changed in place, `derivative` is the first line that takes a derivative,
    and `returned` what an evaluation asked for.
    """

    program: torch.export.ExportedProgram
    decisive: dict[str, Question | None]
    written: tuple[str, ...]
    derivative: Place | None
    returned: tuple[Leaf, ...]


class _Caller(traceback.StackSummary):
    """The innermost line of the user's code, or else of a `forward`, that led to an operator. torch reads all lines on
    the stack for each operator, and then keeps those in a `forward`."""

    @classmethod
    def extract(cls) -> "_Caller":  # type: ignore[override]
        """The line, if there is any."""
        frame: FrameType | None = sys._getframe()
        found = cls()
        while frame is not None:
            code = frame.f_code
            if (own := is_own(code.co_filename)) or (code.co_name == "forward" and not found):
                found[:] = [traceback.FrameSummary(code.co_filename, frame.f_lineno, code.co_name, lookup_line=False)]
            frame = None if own else frame.f_back
        return found

    def summary(self) -> traceback.StackSummary:
        """Itself: torch asks for it."""
        return self


def _compiled_when_called(module: fx.GraphModule) -> None:
    """Replaces `GraphModule.recompile`, which writes and compiles Python code after each change of a graph. Here that
    waits until the graph is called, as only those of autocast's functions are."""

    def forward(self: fx.GraphModule, *given: Any) -> Any:
        RECOMPILE(self)
        return self.forward(*given)

    type(module).forward = forward


@patched(fx.GraphModule, "recompile", _compiled_when_called)
def export(model: Model) -> Exported:
    """Exports the module with its loss.

    Raises PlanError if the forward fails, cannot be captured, or has effects that a graph would not have.
    """
    if found := tuple(lost_hooks(model.module)):
        raise PlanError(*found)
    paths = {id(module): path for path, module in reversed([*model.module.named_modules()])}
    effects = SideEffects(model.module, paths, _device(model))
    constants = Constants.of(model)
    wrapped = LossOf(model, effects, constants)
    try:
        with (
            quiet(),
            attributes_kept(model.module),
            regions_left_open(),
            patched(fx.proxy, "CapturedTraceback", _Caller),
            patched(fx.proxy.TracerBase, "_filter_traceback_frames", lambda tracer, stack: stack),
            without_tensor_metadata(),
            patched(Distribution, "_validate_args", False),  # such a check reads numbers, and can only raise an error
            patched(torch, "_check_tensor_all_with", lambda *checked: None),  # as does this one
            captured_batch(model) as batch,
        ):
            program = torch.export.export(wrapped, batch, strict=False)
    except NoLoss as error:
        raise PlanError(no_loss(model, str(error))) from error
    except Exception as error:  # torch.export raises its own and the module's errors of any type
        if effects.missing is not None:
            raise PlanError(effects.missing) from error
        raise PlanError(*effects.found or effects.replaced or (failure(model, error, effects.derivative),)) from error
    found = (*effects.found, *lost_writes(program, model))
    found += () if effects.found else effects.replaced  # which may be the same, without a line
    with quiet():
        found += tuple(wrong_gradients(model, effects.functions))
        if effects.changed and not found:
            found += tuple(check_attributes(model, effects.assigned))
    if found:
        raise PlanError(*found)
    write_regions(program.graph_module)
    decisive = {name: constants.questions.get(name) for name in constants.used}
    return Exported(program, decisive, effects.written, effects.derivative, effects.returned)


def _device(model: Model) -> str:
    """The kind of device on which the model is captured."""
    return next((p.device.type for p in model.module.parameters() if not p.is_meta), "cpu")


def failure(model: Model, error: Exception, derivative: Place | None) -> Diagnostic:
    """The diagnostic for a failed export: the module's own mistake, if it fails without torch.export as well.
    `derivative` is the first line that takes a derivative, the cause if no other line of the user is known."""
    reason = SYMBOLS.sub(_sorted, str(error).strip().split("\n")[0]) or type(error).__name__
    if (own := raised_by(model)) is not None and not (model.is_meta and "meta" in str(own)):
        return own_failure(model, "forward", own)
    if isinstance(error, NotOnAll):
        return FlexFunction(own_span(of_function(error.function)), model.name, str(error))
    if attribute := ATTRIBUTE.match(reason):
        return _attribute_changed(model, attribute[1])
    lines, place = "".join(traceback.format_tb(error.__traceback__)), raised(error)
    causes = (
        ("torch.ctc_loss(" in lines, CTC),
        (str(Path(torch.distributions.__file__).parent) in lines, DISTRIBUTION),
        (".numpy()" in reason, NUMPY),
        ("torch._C.Generator" in reason, GENERATOR),  # till 2.12; later ones give it as a constant
        ("Size-like symbols: u" in reason, MASK),
        (READ.search(reason) is not None, NUMBER),
        (place is not None and _is_check(place), ASSERTION),
        (type(error).__module__ == "builtins", ANOTHER_WAY),
    )
    change = next((change for is_so, change in causes if is_so), CONTROL_FLOW)
    span = own_span(place)
    if isinstance(error, NoDerivative):
        return CaptureFailed(error.span, model.name, f"no derivative: {error}", DERIVATIVE)
    if derivative is not None and span in (None, derivative.span()):
        fact = "torch.export does not see all operators of the derivative that is taken here"
        return CaptureFailed(derivative.span(), model.name, fact, DERIVATIVE)
    return CaptureFailed(span, model.name, f"torch.export says: {reason}", change)


def _is_check(place: Place) -> bool:
    """Whether a line can only raise an error: an assertion, or a condition of a `raise`."""
    line, following = (linecache.getline(place.file, place.line + n).strip() for n in (0, 1))
    return line.startswith("assert ") or (line.endswith(":") and following.startswith("raise "))


def no_loss(model: Model, what: str) -> NotALoss:
    """The diagnostic for a forward that returns something else, at the forward."""
    return NotALoss(own_span(of_function(type(model.module).forward)), model.name, what)


def _sorted(symbols: re.Match[str]) -> str:
    """The symbols of a message, sorted: torch lists them in no fixed order."""
    return ", ".join(sorted(symbols[0].split(", ")))


def _attribute_changed(model: Model, name: str) -> TensorChanged:
    path, _, last = name.rpartition(".")
    place = of_function(type(model.module.get_submodule(path)).forward)
    reason = "it is no registered buffer, so a program keeps its value at capture"
    change = f"register it in __init__: self.register_buffer('{last}', ...)"
    span = place.span() if place else None
    return TensorChanged(span, f"attribute `{name}`", "changed", module_name(path), reason, change)
