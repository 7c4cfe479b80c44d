"""A model of transformers from its config: the class for the task, the batches, the names of their axes."""

from typing import Any

import torch

from ssdsl.model.axes import axes_of
from ssdsl.model.hf.tasks import TASKS, Example, Sizes, model_class
from ssdsl.model.source import Model
from ssdsl.model.zoo.build import BATCHES, construct
from ssdsl.runtime.bits import Generator

LARGE = 10**8  # parameters; a larger model is built without their numbers, unless it is asked for


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
    batches: int = BATCHES,
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
        hollow, _ = construct(name, count, dtype, seed, generator, False)
        meta = sum(p.numel() for p in hollow.parameters()) > LARGE
    module, recipes = construct(name, make, dtype, seed, generator, meta)
    made = tuple(_batch(config, type(module), task, sizes, seed + i, dtype_of(module)) for i in range(batches))
    return Model(name, module, made, axes_of(module, made[0]), generator, recipes, None, autocast)


def complete(config: Any, task: str) -> None:
    """What a config leaves open that its model needs in training."""
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = config.pad_token_id or 0
    if task in ("sequence", "image") and config.problem_type is None:
        config.problem_type = "single_label_classification"
    if task == "sequence" and getattr(config, "pad_token_id", 0) is None:
        config.pad_token_id = 0


def dtype_of(module: torch.nn.Module) -> torch.dtype:
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)


def _batch(config: Any, model: Any, task: str, sizes: Sizes, seed: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    example = Example(config, model, sizes, torch.Generator().manual_seed(seed))
    batch = TASKS[task].batch(example)
    return {name: t.to(dtype) if t.is_floating_point() else t for name, t in batch.items()}
