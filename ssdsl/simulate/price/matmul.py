"""The time of a matrix product on a device that computes it in tiles.

A GPU's kernel cuts the result into tiles, and each processor computes one at a time. So a result with one tile more
than there are processors takes a second round (a "wave"), and a tile at the edge takes as long as a full one. The time
of a tile is its arithmetic, the time to write it, and a time to begin; the latter two matter if the inner dimension is
small. Smaller tiles fill the device better, but read more for each product; the fastest of the usual sizes is taken. In
a last round with few tiles, processors are not limited by the device's power, and reach their peak. Source: NVIDIA's
guide "Matrix Multiplication Background" (tile and wave quantization). If a result has fewer tiles than there are
processors, kernels also cut the sum and add up its parts ("split-K", in the documentation of CUTLASS).
"""

import math
from collections.abc import Sequence

from ssdsl.cluster.device import Device
from ssdsl.model.graph import ITEMSIZE, Operator
from ssdsl.record import Record

SINGLE = 4  # bytes of a number in single precision
# rows and columns of a tile, and the share of the device's rate that a kernel with such tiles reaches
TILES = (((256, 128), 1.0), ((128, 128), 0.95), ((128, 64), 0.8), ((64, 64), 0.65))


class Product(Record):
    """`count` products of matrices [rows, inner] and [inner, columns]. A size is no whole number where a part has the
    mean of unequal parts' arithmetic."""

    count: int
    rows: float
    columns: float
    inner: float

    @property
    def flops(self) -> float:
        """The operations: a multiplication and an addition for each product of elements."""
        return 2 * self.count * self.rows * self.columns * self.inner

    def of_first(self) -> "Product":
        """The product that gives the gradient of the first factor: the result's gradient by the second factor."""
        return Product(self.count, self.rows, self.inner, self.columns)

    def of_second(self) -> "Product":
        """The product that gives the gradient of the second factor: the first factor by the result's gradient."""
        return Product(self.count, self.inner, self.columns, self.rows)


def product_of(operator: Operator, sizes: Sequence[int], flops: float) -> Product:
    """The matrix product of an operator with these local sizes of its dimensions. Dimensions of the result that both
    factors have are the count, those that only the second has are columns, the others rows. The inner dimension follows
    from the arithmetic, so that it is right for a convolution too."""
    factors = [o for o in operator.inputs if not o.once]
    second = factors[1] if len(factors) > 1 else factors[0]
    found = {"count": 1, "rows": 1, "columns": 1}
    for dim in {d for axis in operator.outputs[0].axes for d in axis}:
        kind = "rows" if not second.carries(dim) else "count" if factors[0].carries(dim) else "columns"
        found[kind] *= sizes[dim]
    return Product(**found, inner=flops / 2 / math.prod(found.values()))


def matmul_seconds(product: Product, device: Device, dtype: str) -> float:
    """The seconds of the arithmetic of a matrix product in a dtype."""
    rate = device.achievable_flops(dtype)
    if device.processors == 1:
        return product.flops / rate
    return min(
        _in_tiles(product, tile, device, rate * share, ITEMSIZE.get(dtype, 4))
        for (m, n), share in TILES
        for tile in ((m, n), (n, m))
    )


def _in_tiles(product: Product, tile: tuple[int, int], device: Device, rate: float, itemsize: int) -> float:
    """The seconds in tiles of one size at `rate` flop/s; each sum is whole, or cut so that no processor is idle."""
    rows, columns = tile
    tiles = product.count * math.ceil(product.rows / rows) * math.ceil(product.columns / columns)
    most = max(1, min(device.processors // tiles, math.floor(product.inner)))  # parts of the sum
    return min(_in_parts(product, tile, device, rate, itemsize, tiles, parts) for parts in {1, most})


def _in_parts(
    product: Product, tile: tuple[int, int], device: Device, rate: float, itemsize: int, tiles: int, parts: int
) -> float:
    """The seconds with each sum cut into `parts` (split-K): these are written in single precision, then read and added.

    9 tiles on 8 processors take 1 + max(e, 1/8) waves. The last wave has one tile, whose processor is not limited by
    the device's power: it runs at its peak, and takes e (the device's compute efficiency) of a wave.
    """
    elements, bandwidth = tile[0] * tile[1], device.achievable_bandwidth()
    full, rest = divmod(tiles * parts, device.processors)
    waves = full + (max(device.compute_efficiency, rest / device.processors) if rest else 0)
    arithmetic = 2 * elements * math.ceil(product.inner / parts) / rate
    written = elements * (itemsize if parts == 1 else SINGLE) / bandwidth
    added = 0.0 if parts == 1 else tiles * elements * (parts * SINGLE + itemsize) / bandwidth
    return waves * (device.processors * (arithmetic + written) + device.tile_s) + added
