"""Runs the kernel of a part on meta tensors, in a group that only records what the part communicates."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ssdsl import runtime
from ssdsl.model.ops.op import PartKernel
from ssdsl.model.ops.reader import Reader, axes_of


@dataclass
class RecordingGroup:
    """The group of the parts as their last one sees it; `sent` has the tensors that it communicates."""

    size: int
    sent: list[torch.Tensor] = field(default_factory=list)

    @property
    def index(self) -> int:
        return self.size - 1

    def all_reduce(self, x: torch.Tensor, merge: str = "sum") -> None:
        self.sent.append(x)


def words_of(kernel: PartKernel, reader: Reader, parts: int) -> dict[str, Any]:
    """The words of the kernel's call for the last of equal parts, whose dimensions have the sizes of `reader`."""
    operator, sizes = reader.operator, reader.sizes
    lengths = [math.prod(sizes[d] for d in axis) for axis in axes_of(operator, *kernel.axis)]
    places = tuple(((parts - 1) * n, parts * n) for n in lengths)
    return {
        "start": places[0][0],
        "part": parts - 1,
        "size": math.prod(size for _, size in places),
        "places": places,
        "count": parts * math.prod(n for n, d in zip(sizes, operator.dims, strict=True) if d.combined),
    }


def run_kernel(kernel: PartKernel, words: Mapping[str, Any]) -> tuple[Any, ...]:
    """The results of the kernel; `words` are all of its call, those of arguments and `group` too."""
    call = re.sub(r"{(\w+)}", r"\1", kernel.call)
    result = eval(call, {kernel.function: getattr(runtime, kernel.function)}, dict(words))
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)
