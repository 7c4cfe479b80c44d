"""The seconds of one kernel and of its backward: the longer of its arithmetic and its memory traffic."""

import math
from collections.abc import Iterator
from functools import lru_cache

from ssdsl.analyse.program_index import ProgramIndex, size_bytes
from ssdsl.cluster.device import Device
from ssdsl.ir.function import Function, OpPart, Split
from ssdsl.ir.value import Axis, Name
from ssdsl.lower.operators.operand_types import is_inner, local_dims
from ssdsl.model.dims.window import Band
from ssdsl.model.graph import Operator
from ssdsl.model.ops.families import table
from ssdsl.model.ops.reader import argument
from ssdsl.model.products import forward_flops, gradient_flops, products, seen_share
from ssdsl.plan.regions import Digit, Runs
from ssdsl.runtime.layout.regions import shared
from ssdsl.simulate.price.fusion import Launch
from ssdsl.simulate.price.matmul import Product, matmul_seconds, product_of


class LaunchTime:
    """The times of a kernel of a function on a device."""

    def __init__(self, facts: ProgramIndex, function: Function, launch: Launch, device: Device) -> None:
        self.facts, self.function, self.launch, self.device = facts, function, launch, device
        self.variables = facts.variables(function)
        self.op = launch.ops[0]
        self.operator = facts.operators[self.op.operator]
        self.row = self.operator.row
        self.written = sum(map(size_bytes, launch.writes))
        self.learns = any(op.learns for op in launch.ops)
        self.kept, self.kept_here = self._kept() if self.learns and facts.fuses else (0, 0)

    def forward(self, *, keeps: bool) -> float:
        """The seconds of the forward; with `keeps` it also writes the tensors for backward."""
        if self.row.contraction:
            return self._product(product_of(self.operator, self._sizes(), self._flops()), 1.0)
        traffic = sum(map(self._read_bytes, self.launch.reads)) + self.written + (self.kept_here if keeps else 0)
        return self._pass(traffic)

    def backward(self) -> Iterator[tuple[Name, float]]:
        """Yields the seconds for the gradient of each value that is read; if one pass makes all gradients, only for one
        value."""
        learning = [r for r in self.launch.reads if self.variables[r].gradient is not None]
        if self.row.contraction:
            yield from self._backward_of_product(learning)
        elif not self.facts.fuses:
            yield from ((r, self._pass(self.written + 2 * size_bytes(self.variables[r]))) for r in learning)
        elif learning:
            given = sum(size_bytes(v) for v in self.launch.writes if v.gradient is not None)
            taken = sum(size_bytes(self.variables[r]) for r in learning)
            activations = [r for r in learning if r.value not in self.facts.weights]
            yield (activations or learning)[0], self._pass(self.kept + given + taken)

    # -- contractions --------------------------------------------------------------------------------------------------

    def _backward_of_product(self, learning: list[Name]) -> Iterator[tuple[Name, float]]:
        """Yields the seconds for the gradients of the factors; a bias's sum is small beside them. One kernel makes all
        gradients of attention, in which it reads and writes twice what the forward does."""
        numbers = [n for n, name in enumerate(self.op.reads) if name in learning]
        found = gradient_flops(self.operator, numbers)
        if not found:
            return
        whole = product_of(self.operator, self._sizes(), self._flops())
        times = {n: flops / forward_flops(self.operator) * self.row.backward_factor for n, flops in found}
        if self.row.fused is not None:
            yield self.op.reads[found[0][0]], 2 * self._product(whole.of_first(), sum(times.values()) / 2)
            return
        for n, count in times.items():
            product = whole.of_second() if n == self._second else whole.of_first()
            yield self.op.reads[n], self._product(product, count)

    @property
    def _second(self) -> int:
        """The number of the second factor."""
        return products(self.operator)[0].right

    def _product(self, product: Product, times: float) -> float:
        dtype = self.op.results[0].dtype
        traffic = sum(map(self._read_bytes, self.op.reads)) + self.written
        # attention is one kernel of several products, with its own tiles
        if self.row.fused is not None and self.facts.fuses_attention:
            arithmetic = product.flops / self.device.attention_flops(dtype)
        else:
            arithmetic = matmul_seconds(product, self.device, dtype)
        return max(arithmetic * times, self._pass(traffic))

    def _flops(self) -> float:
        parts = math.prod(s.digit.parts for s in self.op.splits if isinstance(s, Split))
        return forward_flops(self.operator) / parts * _slowest(self.operator, self.op)

    def _sizes(self) -> list[int]:
        return local_dims(self.operator, self.op.splits)

    # -- memory --------------------------------------------------------------------------------------------------------

    def _pass(self, traffic: float) -> float:
        return max(traffic / self.device.achievable_bandwidth(), self.device.launch_s)

    def _read_bytes(self, name: Name) -> int:
        """The bytes of a value that the kernel reads: of an embedding's table only the rows that are looked up."""
        size = size_bytes(self.variables[name])
        return min(size, self.written) if self.row in table.OPS else size

    def _kept(self) -> tuple[int, int]:
        """The bytes that a fused kernel keeps, and those of them that it writes only for backward."""
        made = {v.name for op in self.launch.ops for v in op.results} - {v.name for v in self.launch.writes}
        sizes = {n: size_bytes(self.variables[n]) for n in self.launch.kept}
        extras = sum(size for _, _, size in self.launch.extras)
        return extras + sum(sizes.values()), extras + sum(size for n, size in sizes.items() if n in made)


def _slowest(operator: Operator, op: OpPart) -> float:
    """The work of the device that has most, over the mean of what counts on all devices: in causal attention, queries
    at the end of the sequence see more keys than those at its beginning. 1 for other operators.

    Query q sees q + 1 keys, so the queries s to e have (s + e + 1) (e - s) / 2 scores; two halves of the queries in one
    run each have 1/4 and 3/4 of them, so the factor is 1.5.
    """
    if not argument(operator, "is_causal"):
        return _computed(operator, [*_bands(operator, op)])
    windows = [(number, dim.window.of) for number, dim in enumerate(operator.dims) if dim.window is not None]
    most = 1.0
    for keys, queries in windows:
        own = [s for s in op.splits if isinstance(s, Split) and isinstance(s.coordinate, Axis)]
        rows = tuple(s.digit for s in own if queries in s.dims)
        columns = tuple(s.digit for s in own if s.dims == (keys,))  # the others go around, or are all there
        most = max(most, _uneven(operator.dims[keys].size, rows, columns))
    return most


@lru_cache(maxsize=256)
def _uneven(size: int, rows: tuple[Digit, ...], columns: tuple[Digit, ...]) -> float:
    """The most scores of a device over the mean, if it has the queries of these digits, and sees the keys of those up
    to each query's own.

    >>> _uneven(16, (Digit(2, 8),), ()), _uneven(16, (Digit(2, 8),), (Digit(2, 8),))
    (1.4705882352941178, 1.8823529411764706)
    """
    work = [_scores(q, k) for q in _of_all(size, rows) for k in _of_all(size, columns)]
    return max(work) * len(work) / sum(work)


def _of_all(size: int, digits: tuple[Digit, ...]) -> list[Runs]:
    """The positions that have each value of some digits of a dimension."""
    found: list[Runs] = [((0, size),)]
    for digit in digits:
        found = [shared(runs, part) for runs in found for part in digit.regions(size)]
    return found


def _scores(queries: Runs, keys: Runs) -> int:
    """The pairs of a query and a key that is not behind it. Query q sees q + 1 - t keys from position t on."""

    def up_to(n: int) -> int:
        return n * (n + 1) // 2 if n > 0 else 0

    return sum(
        up_to(end - first) - up_to(start - first) - up_to(end - last) + up_to(start - last)
        for start, end in queries
        for first, last in keys
    )


def _bands(operator: Operator, op: OpPart) -> Iterator[tuple[Split, int, Band]]:
    """Yields the splits of queries, or of keys, with the number of the keys' dimension and its band."""
    for split in (s for s in op.splits if isinstance(s, Split) and not is_inner(operator, s)):
        for number, dim in enumerate(operator.dims):
            window = dim.window
            if window is not None and isinstance(window.shape, Band) and split.dim in (window.of, number):
                yield split, number, window.shape


def _computed(operator: Operator, windows: list[tuple[Split, int, Band]]) -> float:
    """The scores that attention in a band computes, over those that count: a run of queries computes the scores of all
    keys that it reaches, and all queries those of all keys."""
    for split, number, window in windows:
        if split.dim != number and split.also is None:
            reached = [[(run, window.needs(*run)) for run in runs] for runs in split.digit.regions(window.size)]
            work = [sum(math.prod(end - start for start, end in pair) for pair in pairs) for pairs in reached]
            most = max(work) * len(work) if isinstance(split.coordinate, Axis) else sum(work)
            return most / window.pairs([(0, window.size)])
    return 1 / seen_share(operator)
