"""What the user brings: a module with its loss, example batches and the names of their axes."""

from dataclasses import dataclass

import torch

from ssdsl.runtime.bits import Generator

USER_PREFIX = "ssdsl_user_"  # of the name under which a user's file is imported


@dataclass(frozen=True)
class Model:
    """A module whose forward, called with a batch as keyword arguments, returns its loss (or an object with `.loss`).

    `batches` are example batches, all of the same shapes; training repeats them. `axes` names the axes
    of each input: `{"input_ids": ("batch", "seq")}`. The module may live on the meta device: then it compiles but does
    not run. `generator` draws its random numbers ("hash" or "philox").
    """

    name: str
    module: torch.nn.Module
    batches: tuple[dict[str, torch.Tensor], ...]
    axes: dict[str, tuple[str, ...]]
    generator: Generator = "hash"

    @property
    def is_meta(self) -> bool:
        return any(p.device.type == "meta" for p in self.module.parameters())
