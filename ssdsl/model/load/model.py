"""A model as the user gives it: a module with its loss, example batches and the names of their axes.

A model may compute in half precision: its weights, buffers and floating inputs are of that type, and so are its
gradients. The engine keeps a master copy of the weights in float32 and steps on it (Micikevicius et al. 2018).
"""

import contextlib
import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ssdsl.model.load.batch import cast, taken
from ssdsl.model.load.outputs import Batch, Found, Where, loss_of, outputs_of, reads_batch
from ssdsl.model.load.unmaterialised import with_numbers
from ssdsl.model.rewrite.masked_attention import masked_attention
from ssdsl.record import Record, field, replace
from ssdsl.runtime.program.recipes import Recipes
from ssdsl.runtime.random.counter_rng import Generator
from ssdsl.runtime.train.precision import HALF
from ssdsl.text.diagnostic import Diagnostic

MOST = 1 << 20  # elements of the largest buffer whose numbers are made at capture
Outputs = Sequence[str] | None  # names of a forward's results beside its loss; None: all


class Evaluation(Record):
    """A request for a forward that does not train.

    `outputs` are results beside the loss, by attribute, key, or position in a tuple, None for all. `weights` are those
    that training reads; any other is a constant here. `buffers` are those that training changes: they stay buffers of
    the graph, though this forward does not change them. `constants` are those of the training graph, whose names are in
    use.
    """

    outputs: tuple[str, ...] | None = ()
    weights: frozenset[str] = frozenset()
    buffers: frozenset[str] = frozenset()
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)


class Model(Record):
    """A module whose forward, called with a batch as keyword arguments, returns its loss or outputs that have it.

    `batches` are example batches, all of the same shapes; training repeats them. `axes` names the axes of each input:
    `{"input_ids": ("batch", "seq")}`. The module may be on the meta device, with `recipes` by which the processes make
    its weights; without them, or with batches on the meta device, it compiles but does not run. `generator` draws its
    random numbers ("hash" or "philox"). `loss` is the place of the loss in the outputs, if that is not the usual one
    (`outputs.py`). With `autocast`, forward and loss run under `torch.autocast` to this type. `precision` "bf16" or
    "fp16": it computes in this type. With an `evaluation`, its forward does not train. `remarks` are warnings of how it
    was built.
    """

    name: str
    module: torch.nn.Module
    batches: tuple[dict[str, torch.Tensor], ...]
    axes: dict[str, tuple[str, ...]]
    generator: Generator = "hash"
    recipes: Recipes | None = None
    loss: Where = None
    autocast: torch.dtype | None = None
    precision: str | None = None
    evaluation: Evaluation | None = None
    remarks: tuple[Diagnostic, ...] = ()

    def compute(self, batch: Batch, module: torch.nn.Module | None = None) -> Any:
        """The loss of a batch, by the module or a copy of it.

        Raises NoLoss if the outputs have none, and whatever the user's code raises.
        """
        with masked_attention():
            return self.results(batch, module)[0]

    def results(self, batch: Batch, module: torch.nn.Module | None = None) -> tuple[Any, Found]:
        """The loss, and the outputs that the evaluation wants. Raises NoLoss, NoSuchOutput and what `compute` does."""
        module = self.module if module is None else module
        given = taken(self.module, batch) if reads_batch(self.loss) else batch
        with self.casting():
            outputs = module(**given)
            loss = loss_of(outputs, batch, self.loss)
        wanted = self.evaluation.outputs if self.evaluation is not None else ()
        return loss, outputs_of(None if outputs is loss else outputs, wanted)

    @property
    def losses(self) -> tuple[str, ...]:
        """The names of its losses, if it has several: its loss is then their sum."""
        return tuple(self.loss) if isinstance(self.loss, Mapping) else ()

    def with_loss(self, name: str) -> "Model":
        """The model with one of its losses alone."""
        assert isinstance(self.loss, Mapping)
        return replace(self, loss=self.loss[name])

    def casting(self) -> contextlib.AbstractContextManager[Any]:
        """The autocast region in which the model runs, if there is one."""
        if self.autocast is None:
            return contextlib.nullcontext()
        device = next((p.device.type for p in self.module.parameters() if not p.is_meta), "cpu")
        return torch.autocast(device, self.autocast)

    @property
    def is_meta(self) -> bool:
        """Whether this process has no numbers of its weights."""
        return any(p.is_meta for p in self.module.parameters())

    def example(self) -> dict[str, torch.Tensor]:
        """A copy of the first batch, to call the module with."""
        return {n: t.to("meta") if self.is_meta else t.clone() for n, t in self.batches[0].items()}

    def numbers(self, name: str, tensor: torch.Tensor) -> torch.Tensor | None:
        """The values of a buffer: its own, or those of its recipe; None if there are none, or too many."""
        if not tensor.is_meta:
            return tensor
        if self.recipes is None or name not in self.recipes.weights or tensor.numel() > MOST:
            return None
        return self.recipes.whole(name).to(tensor.dtype)

    @property
    def can_run(self) -> bool:
        """Whether processes can train it."""
        has_batches = not any(t.is_meta for batch in self.batches for t in batch.values())
        return has_batches and (self.recipes is not None or not self.is_meta)

    def with_numbers(self) -> "Model":
        """The same model with its weights in this process."""
        if self.recipes is None:
            return self
        return replace(self, module=with_numbers(self.module, self.recipes), recipes=None)


def with_sizes(model: Model, sizes: Mapping[str, int]) -> Model:
    """The model with one batch in which axes of these names have other sizes. Its tensors repeat what the first batch
    has along them."""
    example = model.batches[0]

    def resized(name: str, tensor: torch.Tensor) -> torch.Tensor:
        for dim, axis in enumerate(model.axes[name]):
            if axis in sizes:
                rows = torch.arange(sizes[axis], device=tensor.device) % tensor.shape[dim]
                tensor = tensor.index_select(dim, rows)
        return tensor

    return replace(model, batches=({name: resized(name, tensor) for name, tensor in example.items()},))


def computing(model: Model) -> Model:
    """The model in the precision in which it computes: a copy, if that is half precision."""
    return model if model.precision is None else _of_type(model, HALF[model.precision])


def in_float32(model: Model) -> Model:
    """A copy of a model that computes in float32."""
    return replace(_of_type(model, torch.float32), precision=None)


def _of_type(model: Model, dtype: torch.dtype) -> Model:
    batches = tuple(cast(batch, dtype) for batch in model.batches)
    return replace(model, module=copy.deepcopy(model.module).to(dtype), batches=batches)
