"""Types in which a model may compute while the optimizer updates its weights in float32."""

import torch

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
