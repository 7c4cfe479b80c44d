"""The types in which a model may compute while its weights are stepped on in float32."""

import torch

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
