"""What the models of the zoo share: the library they come from, seeded weights, the number of batches."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ssdsl.model.errors import TransformersMissing
from ssdsl.model.zoo.options import DTYPES
from ssdsl.text.diagnostic import PlanError

if TYPE_CHECKING:
    import torch

BATCHES = 4


def construct(model: str, make: Callable[[Any], Any], dtype: str, seed: int, meta: bool) -> "torch.nn.Module":
    """A module in training mode, its weights drawn by the seed, or on the meta device.

    `make` gets the transformers library. The caller's random state is left as it was. transformers reports at level
    WARNING what its configs lack for generation, which nothing here does; its errors still come through.
    """
    import torch

    library = _transformers(model)
    verbosity = library.logging.get_verbosity()
    library.logging.set_verbosity_error()
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta" if meta else "cpu"):
            torch.manual_seed(seed)
            module: torch.nn.Module = make(library)
    finally:
        library.logging.set_verbosity(verbosity)
    return module.to(getattr(torch, DTYPES[dtype])).train()


def _transformers(model: str) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise PlanError(TransformersMissing(None, model, str(error))) from error
    return transformers
