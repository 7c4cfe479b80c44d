"""The same model with an example batch of another number of samples."""

from dataclasses import replace

import torch

from ssdsl.model.source import Model


def with_samples(model: Model, samples: int) -> Model:
    """The first axis of the first input, wherever another input has it, becomes of this size: rows are repeated."""
    example = model.batches[0]
    axis, size = next((axes[0], example[name].shape[0]) for name, axes in model.axes.items() if axes)
    rows = torch.arange(samples) % size

    def resized(name: str, tensor: torch.Tensor) -> torch.Tensor:
        for dim, other in enumerate(model.axes[name]):
            if other == axis:
                tensor = tensor.index_select(dim, rows.to(tensor.device))
        return tensor

    return replace(model, batches=({name: resized(name, tensor) for name, tensor in example.items()},))
