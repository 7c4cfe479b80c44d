"""What the models of the zoo share: the library they come from, seeded weights, the number of batches."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ssdsl.model.errors import TransformersMissing
from ssdsl.model.zoo.options import DTYPES
from ssdsl.text.diagnostic import PlanError

if TYPE_CHECKING:
    import torch

    from ssdsl.runtime.bits import Generator
    from ssdsl.runtime.recipe import Recipes

BATCHES = 4


def construct(
    model: str, make: Callable[[Any], "torch.nn.Module"], dtype: str, seed: int, generator: "Generator", meta: bool
) -> "tuple[torch.nn.Module, Recipes | None]":
    """What `made` says, of a module that `make` constructs from the transformers library.

    transformers reports at level WARNING what its configs lack for generation, which nothing here does; its errors
    still come through.
    """
    library = transformers_library(model)
    with silent(library):
        return made(lambda: make(library), dtype, seed, generator, meta)


@contextmanager
def silent(library: Any) -> "Iterator[None]":
    """Within it, transformers reports errors alone."""
    verbosity = library.logging.get_verbosity()
    library.logging.set_verbosity_error()
    try:
        yield
    finally:
        library.logging.set_verbosity(verbosity)


def made(
    make: "Callable[[], torch.nn.Module]", dtype: str, seed: int, generator: "Generator", meta: bool
) -> "tuple[torch.nn.Module, Recipes | None]":
    """A module in training mode, its weights drawn by the seed; or on the meta device, with the recipes of its weights.

    The caller's random state is left as it was.
    """
    import torch

    from ssdsl.model.deferred import Deferred, initial_draws

    with (scope := Deferred(seed, generator) if meta else initial_draws(seed, generator)):
        module = make().to(getattr(torch, DTYPES[dtype])).train()
    return scope.finish(module) if isinstance(scope, Deferred) else (module, None)


def transformers_library(model: str) -> Any:
    """The library; raises PlanError where it is not installed."""
    try:
        import transformers
    except ImportError as error:
        raise PlanError(TransformersMissing(None, model, str(error))) from error
    return transformers
