"""Precisions: types in which a model may compute while the optimizer updates its weights in float32, the loss scale of
float16, and float32 itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import torch

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


@contextmanager
def without_tf32() -> Iterator[None]:
    """A context in which convolutions in float32 are computed in it. By default cuDNN rounds their operands to TF32,
    which has 11 of the 24 bits."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


@dataclass
class Scaler:
    """The loss scale of the next step, for a model in float16, whose small gradients would underflow to zero.

    All ranks have the same scale, because it follows from a flag that they share. As in torch.amp.GradScaler, the scale
    doubles after `interval` steps without overflow; where a gradient is not finite it halves, and the step is skipped.
    """

    scale: float = 65536.0
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000
    good: int = 0  # steps since the scale changed
    skips: bool = False  # whether gradients of the next update have overflowed, so that it is left out
    skipped: int = 0  # updates that were left out

    def update(self, overflowed: bool) -> None:
        """Adapts the scale after a step."""
        if overflowed:
            self.scale, self.good = self.scale * self.backoff, 0
            return
        self.good += 1
        if self.good == self.interval:
            self.scale, self.good = self.scale * self.growth, 0

    def state_dict(self) -> dict[str, float]:
        """The state for a checkpoint, which may be saved between the batches of an update."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, float]) -> None:
        """The inverse of `state_dict`."""
        for name, value in state.items():
            setattr(self, name, type(getattr(self, name))(value))
