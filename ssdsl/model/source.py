"""What the user brings: a module with its loss, example batches and the names of their axes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from ssdsl.model.deferred import with_numbers
from ssdsl.runtime.bits import Generator
from ssdsl.runtime.recipe import Recipes

USER_PREFIX = "ssdsl_user_"  # of the name under which a user's file is imported


@dataclass(frozen=True)
class Evaluation:
    """What is wanted of a forward that does not train.

    `outputs` are results beside the loss, by attribute, key, or position in a tuple. `buffers` are state although this
    forward does not change them: training does. `constants` are those of the training graph, whose names are taken.
    """

    outputs: tuple[str, ...] = ()
    buffers: frozenset[str] = frozenset()
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Model:
    """A module whose forward, called with a batch as keyword arguments, returns its loss (or an object with `.loss`).

    `batches` are example batches, all of the same shapes; training repeats them. `axes` names the axes
    of each input: `{"input_ids": ("batch", "seq")}`. The module may live on the meta device, with `recipes` by which
    the processes make its weights; without them, or with batches on the meta device, it compiles but does not run.
    `generator` draws its random numbers ("hash" or "philox"). `evaluation`: its forward is not to train.
    """

    name: str
    module: torch.nn.Module
    batches: tuple[dict[str, torch.Tensor], ...]
    axes: dict[str, tuple[str, ...]]
    generator: Generator = "hash"
    recipes: Recipes | None = None
    evaluation: Evaluation | None = None

    @property
    def is_meta(self) -> bool:
        """Whether this process has no numbers of its weights."""
        return any(p.is_meta for p in self.module.parameters())

    def example(self) -> dict[str, torch.Tensor]:
        """A copy of the first batch, to call the module with."""
        return {n: t.to("meta") if self.is_meta else t.clone() for n, t in self.batches[0].items()}

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
