"""How a tensor on a device is written: `[batch/dp/m 2, seq 64, 3·heads/tp·head_dim 192, sum:tp]`.

For each axis the dimensions that it is made of, by name, each with the indices that cut it, and the size on a device;
then the indices over which the tensor is a sum to come.
"""

from collections.abc import Iterable, Sequence

from ssdsl.record import Record


class LayoutAxis(Record):
    """An axis of a tensor: the names of its dimensions, outermost first, each with what cuts it; and its size on a
    device."""

    dims: tuple[tuple[str, tuple[str, ...]], ...]
    local: object  # a number, or a size that depends on the batch

    def __str__(self) -> str:
        words = "·".join("/".join((name, *cuts)) for name, cuts in self.dims)
        return f"{words} {self.local}" if words and words != str(self.local) else str(self.local)


def layout_words(axes: Iterable[LayoutAxis], sums: Sequence[str] = ()) -> str:
    """The text of a tensor with these axes, an addend of a sum over these indices."""
    return f"[{', '.join((*map(str, axes), *(f'sum:{name}' for name in sums)))}]"
