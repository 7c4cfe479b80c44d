"""What a user's function returns: a module, the inputs of one batch or several, the names of their axes, the loss."""

from dataclasses import replace
from typing import Any

import torch

from ssdsl.model.batch import Batch, difference, kind, named_axes, named_batch
from ssdsl.model.errors import BadInputs, BadModel
from ssdsl.model.source import Model
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Span

PARTS = "module, inputs, axes"


def check_model(span: Span | None, name: str, function: str, result: Any) -> Model:
    """The model that the function returned; `span` shows the function. Each check builds on the ones before."""
    if isinstance(result, Model):
        return replace(result, name=name)
    if not (isinstance(result, tuple) and 2 <= len(result) <= 4):
        what = f"a tuple of {len(result)}" if isinstance(result, tuple) else kind(result)
        fact = f"function `{function}` returns {what}, not ({PARTS})"
        raise PlanError(BadModel(span, fact, f"return {PARTS}"))
    module, inputs, axes, loss = (*result, None, None)[:4]
    if not isinstance(module, torch.nn.Module):
        fact = f"function `{function}` returns {kind(module)} where its module should be"
        raise PlanError(
            BadModel(span, fact, "return an instance of torch.nn.Module first: return MyModel(), inputs, axes")
        )
    checked_loss(span, loss)
    batches = _batches(span, module, inputs, callable(loss))
    return Model(name, module, batches, named_axes(span, module, batches[0], axes), loss=loss)


def checked_loss(span: Span | None, loss: Any) -> None:
    """Raises PlanError where something does not say where the loss is."""
    if loss is None or isinstance(loss, (str, int)) or callable(loss):
        return
    change = "give a name, a position in a tuple, or a function of outputs and batch"
    raise PlanError(BadModel(span, f"the loss is {kind(loss)}, which does not say where it is", change))


def _batches(span: Span | None, module: torch.nn.Module, inputs: Any, for_loss: bool) -> tuple[Batch, ...]:
    many = inputs if isinstance(inputs, list) else [inputs]
    if not many:
        raise PlanError(BadInputs(span, "the list of batches is empty", "give at least one batch"))
    batches = tuple(named_batch(span, module, one, for_loss) for one in many)
    for number, batch in enumerate(batches):
        if unlike := difference(batches[0], batch):
            fact = f"batch {number} is unlike batch 0: {unlike}"
            raise PlanError(BadInputs(span, fact, "make all batches alike: the plan is compiled once for all of them"))
    return batches
