"""What the models of the zoo share: the library they come from, seeded weights, random batches."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ssdsl.model.load.errors import TransformersMissing
from ssdsl.model.load.options import DTYPES
from ssdsl.text.diagnostic import PlanError

if TYPE_CHECKING:
    import torch

    from ssdsl.runtime.bits import Generator
    from ssdsl.runtime.recipe import Recipes

BATCHES = 4
TOKENS: dict[str, tuple[str, ...]] = {"input_ids": ("batch", "seq"), "labels": ("batch", "seq")}  # names of their axes


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

    from ssdsl.model.load.unmaterialised import Deferred, initial_draws

    with (scope := Deferred(seed, generator) if meta else initial_draws(seed, generator)):
        module = make().to(getattr(torch, DTYPES[dtype])).train()
    return scope.finish(module) if isinstance(scope, Deferred) else (module, None)


def grouped(net: "torch.nn.Module", groups: int) -> "torch.nn.Module":
    """The module whose batch norms take the statistics of each of `groups` equal parts of the batch by itself."""
    from ssdsl.model.grouped_norm import micro_batch_statistics

    return micro_batch_statistics(net, groups) if groups > 1 else net


def group_problem(batch: int, groups: int) -> str:
    """Why a batch has no such parts, or nothing."""
    return f"batch = {batch} is no multiple of statistics = {groups}" if batch % groups else ""


def transformers_library(model: str) -> Any:
    """The library; raises PlanError where it is not installed."""
    try:
        import transformers
    except ImportError as error:
        raise PlanError(TransformersMissing(None, model, str(error))) from error
    return transformers


def token_batches(vocab: int, batch: int, seq: int, seed: int) -> "tuple[dict[str, torch.Tensor], ...]":
    """Random tokens; the labels are the same, the models shift them by one."""
    import torch

    draws = [torch.Generator().manual_seed(seed + i) for i in range(BATCHES)]
    tokens = [torch.randint(vocab, (batch, seq), generator=g) for g in draws]
    return tuple({"input_ids": t, "labels": t.clone()} for t in tokens)


def image_batches(
    shape: tuple[int, ...],
    classes: int,
    dtype: str,
    seed: int,
    meta: bool,
    *,
    image: str = "pixel_values",
    dense: bool = False,
) -> "tuple[dict[str, torch.Tensor], ...]":
    """Images of noise, batch x channels x space, by the name `image`, with random labels: each of them one, or each
    pixel if they are `dense`. On the meta device if asked: the papers' images are many and large."""
    import torch

    labels = (shape[0], *shape[2:]) if dense else shape[:1]

    def batch(draws: torch.Generator) -> dict[str, torch.Tensor]:
        pixels = noise(shape, dtype, draws, meta)
        if meta:
            return {image: pixels, "labels": torch.empty(labels, dtype=torch.int64, device="meta")}
        return {image: pixels, "labels": torch.randint(classes, labels, generator=draws)}

    return tuple(batch(torch.Generator().manual_seed(seed + i)) for i in range(BATCHES))


def noise(shape: tuple[int, ...], dtype: str, draws: "torch.Generator", meta: bool) -> "torch.Tensor":
    """Normal numbers in a format; none on the meta device."""
    import torch

    form = getattr(torch, DTYPES[dtype])
    return torch.empty(shape, dtype=form, device="meta") if meta else torch.randn(shape, generator=draws).to(form)
