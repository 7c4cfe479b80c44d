"""The operators of ssdsl's own, `ssdsl::dropout`: where rows register them with torch."""

from typing import Any

import torch

LIBRARY: Any = torch.library.Library("ssdsl", "DEF")  # type: ignore[no-untyped-call]
