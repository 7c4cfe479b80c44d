"""Builds a model of transformers from its config: the class for the task, the batches, the names of their axes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ssdsl.model.load.batch import axes_of, cast
from ssdsl.model.load.errors import TransformersMissing
from ssdsl.model.load.hf_tasks import Example, Sizes, batch_of, model_class
from ssdsl.model.load.model import Model
from ssdsl.model.load.options import DTYPES
from ssdsl.model.load.unmaterialised import made
from ssdsl.runtime.program.recipes import Recipes
from ssdsl.runtime.random.counter_rng import Generator
from ssdsl.text.diagnostic import PlanError

BATCHES = 4
LARGE = 10**8  # parameters; a larger model is built without their numbers, unless the user asks for them


def build(
    name: str,
    config: Any,
    task: str,
    sizes: Sizes,
    *,
    dtype: str = "fp32",
    autocast: torch.dtype | None = None,
    seed: int = 0,
    generator: Generator = "hash",
    meta: bool | None = False,
) -> Model:
    """The model of a config for a task that it has, with random weights and batches.

    Raises NoExample where no batch is known for it, and what transformers raises.
    """

    def make(library: Any) -> Any:
        complete(config, task)
        module = model_class(library, config, task)(config)
        if task == "causal" and getattr(module, "loss_type", "") is None:
            module.loss_type = "ForCausalLM"  # some classes name none, and warn that they fall back to this one
        return module

    def count(library: Any) -> Any:
        with torch.device("meta"):
            return make(library)

    if meta is None:
        hollow, _ = _constructed(name, count, dtype, seed, generator, False)
        meta = sum(p.numel() for p in hollow.parameters()) > LARGE
    module, recipes = _constructed(name, make, dtype, seed, generator, meta)
    draws = (torch.Generator().manual_seed(seed + i) for i in range(BATCHES))
    examples = (Example(config, type(module), sizes, each, meta) for each in draws)
    given = tuple(cast(batch_of(task, example), getattr(torch, DTYPES[dtype])) for example in examples)
    return Model(name, module, given, axes_of(module, given[0]), generator, recipes, None, autocast)


def _constructed(
    model: str, make: Callable[[Any], torch.nn.Module], dtype: str, seed: int, generator: Generator, meta: bool
) -> tuple[torch.nn.Module, Recipes | None]:
    """The module that `make` constructs from the transformers library, and its recipes, as `made` gives them.

    Warnings of transformers are silenced, because they are about generation, which is not used here. Its errors are
    shown.
    """
    library = transformers_library(model)
    with silent(library):
        module, recipes = made(lambda: make(library), getattr(torch, DTYPES[dtype]), seed, generator, meta)
    _collect_scores(module)
    return module, recipes


def _collect_scores(module: Any) -> None:
    """Adds the hooks that collect the scores of routers for the loss, if the config asks for them.

    transformers adds them in the first forward. But a forward that changes its module would be run twice more, to see
    whether it changes it each time, and that needs numbers.
    """
    if getattr(module.config, "output_router_logits", False):
        from transformers.utils.output_capturing import maybe_install_capturing_hooks

        maybe_install_capturing_hooks(module.base_model)


def complete(config: Any, task: str) -> None:
    """Fills in the fields that a config leaves open and that its model needs in training."""
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = config.pad_token_id or 0
    if task in ("sequence", "image") and config.problem_type is None:
        config.problem_type = "single_label_classification"
    if task == "sequence" and getattr(config, "pad_token_id", 0) is None:
        config.pad_token_id = 0


def transformers_library(model: str) -> Any:
    """The library; raises PlanError where it is not installed."""
    try:
        import transformers
    except ImportError as error:
        raise PlanError(TransformersMissing(None, model, str(error))) from error
    return transformers


@contextmanager
def silent(library: Any) -> Iterator[None]:
    """A context in which transformers reports errors only."""
    verbosity = library.logging.get_verbosity()
    library.logging.set_verbosity_error()
    try:
        yield
    finally:
        library.logging.set_verbosity(verbosity)
