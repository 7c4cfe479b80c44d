"""Random words as a pure function of a key and an element's position in the whole tensor.

Each part of a tensor passes the logical positions of its own elements. So it draws the numbers that one device draws
for them, wherever and in whatever order parts run. There is no state: equal keys and positions give equal words. All
words are int32, whose sums and products wrap; nothing here waits for a device.

There are two generators. "hash" mixes the linear index with a few integer operations per element (multipliers and
shifts of Mulvey's hash and of Wellons's `lowbias32`). "philox" is Philox4x32-10 (Salmon et al. 2011, "Parallel random
numbers: as easy as 1, 2, 3"), about five times as slow, and known to pass all usual tests.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, get_args

import torch

Generator = Literal["hash", "philox"]
GENERATORS: tuple[Generator, ...] = get_args(Generator)
Take = Callable[[torch.Tensor, torch.Tensor], object]

CHUNK = 1 << 16  # elements whose words fit in a core's cache
GPU_CHUNK = 1 << 24  # elements whose words take 64 MiB: a GPU has no cache to stay in, but a limited memory
WORDS = 1 << 32
MASK = WORDS - 1
GOLDEN = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio: the step of a Weyl sequence


def step_keys(seed_and_step: torch.Tensor, count: int) -> torch.Tensor:
    """The keys of the draws of a step, int64 [count], from int64 [seed, step].

    Within a step no two keys are equal: the draw's number is mixed by a bijection of 64 bits (that of SplitMix64).
    """
    seed, step = seed_and_step[0], seed_and_step[1]
    start = _mix64(_mix64(seed + _signed(GOLDEN, 64)) + step * _signed(0xD1B54A32D192ED03, 64))
    draws = torch.arange(1, count + 1, dtype=torch.int64, device=seed_and_step.device)
    return _mix64(start + draws * _signed(GOLDEN, 64))


def further_key(key: torch.Tensor, number: int) -> torch.Tensor:
    """A subkey, for draws that need several words per element; number 0 is the key itself."""
    if number == 0:
        return key
    return _mix64(key + _signed(number * GOLDEN, 64))


def fill(
    dtype: torch.dtype,
    key: torch.Tensor,
    index: Sequence[torch.Tensor],
    sizes: Sequence[int],
    generator: Generator,
    take: Take,
) -> torch.Tensor:
    """A new tensor made of random words, int32, of the elements at these positions, chunk by chunk: `take(words, out)`
    writes a chunk and may overwrite the words.

    key int64, of no axes; index: for each axis the logical positions of the local part, 1-D; sizes: the logical sizes,
    which say which linear index an element has (row major). Returns [len(i) for i in index].
    """
    shape = [len(i) for i in index]
    out = torch.empty(shape, dtype=dtype, device=key.device)
    if out.numel() and not out.is_meta:
        stream = _hashed if generator == "hash" else _philox
        for words, chunk in stream(key, index, sizes, out):
            take(words, chunk)
    return out


def _chunks(rows: int, columns: int, device: torch.device) -> Iterator[tuple[slice, slice]]:
    """Rectangles of about as many elements as are drawn at once on such a device."""
    size = CHUNK if device.type == "cpu" else GPU_CHUNK
    if torch.compiler.is_compiling():  # a kernel keeps no words
        size = rows * columns
    wide = min(columns, size)
    high = max(1, size // wide)
    for column in range(0, columns, wide):
        for row in range(0, rows, high):
            yield slice(row, row + high), slice(column, column + wide)


# -- the hash ----------------------------------------------------------------------------------------------------------


def _hashed(
    key: torch.Tensor, index: Sequence[torch.Tensor], sizes: Sequence[int], out: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    is_long = math.prod(sizes) > WORDS
    outer, inner = _linear(index, sizes, torch.int64 if is_long else torch.int32, out.device)
    flat = out.view(len(outer), len(inner))
    first, second = _low(key), _low(key >> 32)
    spare = torch.empty(0, dtype=torch.int32, device=key.device)
    for rows, columns in _chunks(len(outer), len(inner), out.device):
        counter = outer[rows, None] + inner[None, columns]
        if spare.shape != counter.shape:
            spare = torch.empty(counter.shape, dtype=torch.int32, device=key.device)
        if is_long:
            high = _low(counter >> 32).bitwise_xor_(second).add_(_signed(GOLDEN))
            yield hashed(_low(counter), first, _mix32(high, spare), spare), flat[rows, columns]
        else:
            yield hashed(counter, first, second, spare), flat[rows, columns]


def hashed(counter: torch.Tensor, first: torch.Tensor, second: torch.Tensor, spare: torch.Tensor) -> torch.Tensor:
    """The hash of int32 counters, in place: one round, the second half of the key, and two more rounds.

    One half of the key is added before a product and the other between two products, so the streams of two keys are not
    permutations of each other.
    """
    x = counter.bitwise_xor_(first)
    _shift_xor(x, 17, spare).mul_(_signed(0xED5AD4BB))
    x.bitwise_xor_(second)
    return _mix32(x, spare)


def _mix32(x: torch.Tensor, spare: torch.Tensor) -> torch.Tensor:
    _shift_xor(x, 16, spare).mul_(_signed(0x7FEB352D))
    _shift_xor(x, 15, spare).mul_(_signed(0x846CA68B))
    return _shift_xor(x, 16, spare)


def _shift_xor(x: torch.Tensor, by: int, spare: torch.Tensor) -> torch.Tensor:
    """x ^= x >> by, in place, as a logical shift."""
    torch.bitwise_right_shift(x, by, out=spare)
    return x.bitwise_xor_(spare.bitwise_and_((1 << (32 - by)) - 1))


def _linear(
    index: Sequence[torch.Tensor], sizes: Sequence[int], dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """The row-major index as a sum of two short tensors [rows] and [columns], whose sums cover all elements."""
    stride, strides = 1, []
    for size in reversed(sizes):
        strides.append(stride)
        stride *= size
    width = torch.iinfo(dtype).bits
    terms = [i.to(dtype) * _signed(s, width) for i, s in zip(index, reversed(strides), strict=True)]
    zero = torch.zeros(1, dtype=dtype, device=device)
    columns = terms.pop() if terms else zero
    while terms and len(columns) * len(terms[-1]) <= CHUNK:
        columns = (terms.pop()[:, None] + columns).flatten()
    rows = zero
    for term in terms:
        rows = (rows[:, None] + term).flatten()
    return rows, columns


# -- Philox ------------------------------------------------------------------------------------------------------------


def _philox(
    key: torch.Tensor, index: Sequence[torch.Tensor], sizes: Sequence[int], out: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Words of Philox: the last axis with more than one position takes the four words of each block in turn.

    The counter is (block, linear index of the axes before it in two words, 0).
    """
    axes = [(i, n) for i, n in zip(index, sizes, strict=True) if n > 1]
    last, size = axes.pop() if axes else (torch.zeros(1, dtype=torch.int64, device=out.device), 1)
    outer, inner = _linear([i for i, _ in axes], [n for _, n in axes], torch.int64, out.device)
    before = (outer[:, None] + inner).flatten()
    flat = out.view(len(before), len(last))
    wide = None
    for rows, columns in _chunks(len(before), len(last), out.device):
        if wide != columns:
            blocks, words = _blocks(last[columns].to(torch.int64), size)
            wide = columns
        line = before[rows, None]
        shape = len(line), len(blocks)
        counter = [c.expand(shape) for c in (blocks, line & MASK, line >> 32, torch.zeros_like(line))]
        found = torch.stack(philox(counter, key), dim=-1).flatten(1)
        yield found[:, : len(words)] if _counts_up(words) else found.index_select(1, words), flat[rows, columns]


def _blocks(last: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The blocks that hold the words of these positions, and each position's word in its block.

    On a CPU, shared blocks are found by looking at the positions. A GPU would have to wait for that, so it computes one
    block per position.
    """
    if last.device.type == "cpu" and not torch.compiler.is_compiling():
        blocks, place = torch.unique(last >> 2, return_inverse=True)
    elif len(last) == size:
        blocks = torch.arange(-(-size // 4), device=last.device)
        place = last >> 2
    else:
        blocks = last >> 2
        place = torch.arange(len(last), device=last.device)
    return blocks, place * 4 + (last & 3)


def _counts_up(words: torch.Tensor) -> bool:
    if words.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    return torch.equal(words, torch.arange(len(words)))


def philox(counter: Sequence[torch.Tensor], key: torch.Tensor) -> list[torch.Tensor]:
    """Philox4x32-10: four int32 words per block, from int64 counters of four words and a key of 64 bits."""
    c0, c1, c2, c3 = counter
    k0, k1 = key & MASK, key >> 32 & MASK
    for _ in range(10):
        first, second = c0 * 0xD2511F53, c2 * 0xCD9E8D57  # below 2**64: the bits are right, whatever the sign
        c0 = (second >> 32).bitwise_and_(MASK).bitwise_xor_(c1).bitwise_xor_(k0)
        c2 = (first >> 32).bitwise_and_(MASK).bitwise_xor_(c3).bitwise_xor_(k1)
        c1, c3 = second.bitwise_and_(MASK), first.bitwise_and_(MASK)
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return [_low(c) for c in (c0, c1, c2, c3)]


# -- arithmetic that wraps ---------------------------------------------------------------------------------------------


def _mix64(x: torch.Tensor) -> torch.Tensor:
    """The finaliser of SplitMix64 (Steele et al. 2014), a bijection of int64."""
    x = (x ^ (x >> 30 & (1 << 34) - 1)) * _signed(0xBF58476D1CE4E5B9, 64)
    x = (x ^ (x >> 27 & (1 << 37) - 1)) * _signed(0x94D049BB133111EB, 64)
    return x ^ (x >> 31 & (1 << 33) - 1)


def _signed(word: int, width: int = 32) -> int:
    """The low bits of a number as a signed integer.

    >>> _signed(0xFFFFFFFF)
    -1
    """
    word &= (1 << width) - 1
    return word - (word >> (width - 1) << width)


def _low(x: torch.Tensor) -> torch.Tensor:
    """The low 32 bits of int64."""
    return x.to(torch.int32)
