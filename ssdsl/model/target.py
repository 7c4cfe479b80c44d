"""torch's objects in a call, as data: the overload that it calls, and words such as `torch.float32` in its arguments.

`capture/overloads.py` converts them to torch's own objects and back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ssdsl.record import Record


class SchemaParameter(Record):
    """A parameter of an overload, with its default. What each call has to say has None, and is no `optional` one."""

    name: str
    default: Any = None
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """An overload of torch's, by its full name: `aten::max.dim`, or `aten::relu` for the one that has no name.

    `is_pointwise`: torch tags it so. `asks_for_order`: its results may depend on the memory order of its operands
    (`memory/memory_order.py`). `unpacks`: it returns several tensors, or a list of them.
    """

    name: str
    parameters: tuple[SchemaParameter, ...] = field(compare=False)
    is_pointwise: bool = field(default=False, compare=False)
    asks_for_order: bool = field(default=False, compare=False)
    unpacks: bool = field(default=False, compare=False)

    def given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by the names of their parameters, in their order."""
        return dict(zip((p.name for p in self.parameters), args, strict=False)) | dict(kwargs)

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name, with the defaults of parameters that are not given.

        >>> target("aten::max.dim", "self dim keepdim").bound(("x",), {"keepdim": True})
        {'self': 'x', 'dim': None, 'keepdim': True}
        """
        return {p.name: p.default for p in self.parameters} | self.given(args, kwargs)

    def __str__(self) -> str:
        """Its name in Python, behind `torch.ops`.

        >>> str(target("aten::relu", "self")), str(target("aten::max.dim", "self dim keepdim"))
        ('aten.relu.default', 'aten.max.dim')
        """
        name = self.name.replace("::", ".", 1)
        return name if name.count(".") > 1 else f"{name}.default"


def target(name: str, parameters: str) -> Target:
    """An overload whose parameters have these names."""
    return Target(name, tuple(map(SchemaParameter, parameters.split())))


class TorchWord(Record):
    """A dtype, a layout, a memory format or a device in an argument.

    >>> TorchWord("dtype", "float32"), TorchWord("device", "cpu")
    (torch.float32, device(type='cpu'))
    """

    kind: Literal["dtype", "layout", "memory_format", "device"]
    name: str

    def __repr__(self) -> str:
        return f"device(type='{self.name}')" if self.kind == "device" else f"torch.{self.name}"
