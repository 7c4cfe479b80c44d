"""Types in which a model may compute while the optimizer updates its weights in float32; float32 itself."""

from collections.abc import Iterator
from contextlib import contextmanager

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
