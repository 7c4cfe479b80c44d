"""The time of a sum of products on a device that computes it in tiles.

A GPU's kernel cuts the result into tiles; each processor computes one at a time, so a result of one tile more than
there are processors takes two rounds ("waves"), and a tile at the edge takes as long as a full one. A tile takes its
arithmetic, then the time to write it, and a time to begin, which show where few products are summed up. Smaller tiles
fill the device better and read more for each product. Of the sizes that kernels have, the fastest is taken. Source:
NVIDIA's guide "Matrix Multiplication Background" (tile and wave quantization).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ssdsl.cluster.device import Device
from ssdsl.model.graph import ITEMSIZE, Operator

TILES = (((256, 128), 1.0), ((128, 128), 0.95), ((128, 64), 0.8), ((64, 64), 0.65))  # and the share of the rate


@dataclass(frozen=True, slots=True)
class Product:
    """`count` products of matrices [rows, inner] and [inner, columns]."""

    count: int
    rows: int
    columns: int
    inner: int

    @property
    def flops(self) -> int:
        return 2 * self.count * self.rows * self.columns * self.inner

    def of_first(self) -> "Product":
        """The product that gives the gradient of the first factor: that of the result by the second."""
        return Product(self.count, self.rows, self.inner, self.columns)

    def of_second(self) -> "Product":
        """The product that gives the gradient of the second factor."""
        return Product(self.count, self.inner, self.columns, self.rows)


def product_of(operator: Operator, sizes: Sequence[int], flops: float) -> Product:
    """The matrices of an operator with these local sizes of its dimensions: products that both factors have count,
    columns are those that only the second has. What is summed up follows from the arithmetic, as in a convolution."""
    factors = [o for o in operator.inputs if not o.once]
    second = factors[1] if len(factors) > 1 else factors[0]
    found = {"count": 1, "rows": 1, "columns": 1}
    for dim in {d for axis in operator.outputs[0].axes for d in axis}:
        kind = "rows" if not second.carries(dim) else "count" if factors[0].carries(dim) else "columns"
        found[kind] *= sizes[dim]
    return Product(**found, inner=max(1, round(flops / 2 / math.prod(found.values()))))


def matmul_seconds(product: Product, device: Device, dtype: str) -> float:
    """The arithmetic of a product of matrices of a type."""
    rate = device.achievable_flops(dtype)
    if device.processors == 1:
        return product.flops / rate
    return min(
        _in_tiles(product, tile, device, rate * share, ITEMSIZE.get(dtype, 4))
        for (m, n), share in TILES
        for tile in ((m, n), (n, m))
    )


def _in_tiles(product: Product, tile: tuple[int, int], device: Device, rate: float, itemsize: int) -> float:
    rows, columns = tile
    tiles = product.count * math.ceil(product.rows / rows) * math.ceil(product.columns / columns)
    waves = math.ceil(tiles / device.processors)
    arithmetic = 2 * rows * columns * product.inner / rate
    written = rows * columns * itemsize / device.achievable_bandwidth()
    return waves * (device.processors * (arithmetic + written) + device.tile_s)
