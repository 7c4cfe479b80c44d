"""Random words: the same for every part, known answers of Philox, and the hash's quality.

The tests are of single bits (how often each is set, whether it tells another bit, or itself at a distance), bytes and
their pairs, rows of matrices (strides), runs and gaps, streams of other draws, steps and seeds, keys that differ in a
bit, and collisions, on 65536 words of each stream (262144 for runs).

They draw the same words every time, so they pass or fail for good. Statistics are in standard deviations; with a few
hundred of them in a test, 5 is a bound that a good generator does not reach.
"""

import itertools
import math

import pytest
import torch

from ssdsl.runtime.random import counter_rng as module
from ssdsl.runtime.random.counter_rng import GENERATORS, Generator, fill, further_key, philox, step_keys

BOUND = 5.0
N = 1 << 16


def key(seed: int = 0, step: int = 0, draw: int = 0) -> torch.Tensor:
    return step_keys(torch.tensor([seed, step]), draw + 1)[draw]


def bits(which: torch.Tensor, index: list[torch.Tensor], sizes: list[int], generator: Generator) -> torch.Tensor:
    return fill(torch.int32, which, index, sizes, generator, lambda words, out: out.copy_(words))


def words(generator: Generator, which: torch.Tensor, start: int = 0, stride: int = 1, count: int = N) -> torch.Tensor:
    """Words as int64 from 0 to 2**32 - 1, of every `stride`-th position of an axis of 2**31."""
    positions = (start + torch.arange(count) * stride) % (1 << 31)
    return bits(which, [positions], [1 << 31], generator).to(torch.int64) & 0xFFFFFFFF


def planes(found: torch.Tensor) -> torch.Tensor:
    """The 32 bits of each word as -1 and 1, [32, n]."""
    return (found >> torch.arange(32)[:, None] & 1).to(torch.float32) * 2 - 1


def deviations(signs: torch.Tensor) -> float:
    """How far sums of independent signs [.., n] are from zero, at most, in standard deviations."""
    return float(signs.sum(-1).abs().max()) / math.sqrt(signs.shape[-1])


def chi_square(found: torch.Tensor, cells: int) -> float:
    """The deviation of Pearson's statistic from its mean, in its standard deviations."""
    counts = torch.bincount(found, minlength=cells).double()
    expected = found.numel() / cells
    statistic = float(((counts - expected) ** 2).sum() / expected)
    return abs(statistic - (cells - 1)) / math.sqrt(2 * (cells - 1))


# -- what parts draw ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("chunk", [16, 1 << 16])
def test_a_part_draws_its_slice_of_the_whole(generator: Generator, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [6, 1, 5, 13]
    monkeypatch.setattr(module, "CHUNK", chunk)
    whole = bits(key(), [torch.arange(n) for n in sizes], sizes, generator)
    picked = [torch.tensor(i) for i in ([1, 4, 5], [0], [4, 0, 3], [2, 3, 7, 8, 12, 0])]
    part = bits(key(), picked, sizes, generator)
    assert torch.equal(part, whole[picked[0]][:, picked[1]][:, :, picked[2]][:, :, :, picked[3]])
    assert whole.unique().numel() == whole.numel()


@pytest.mark.parametrize("generator", GENERATORS)
def test_no_axis_or_no_element(generator: Generator) -> None:
    assert bits(key(), [], [], generator).shape == ()
    assert bits(key(), [torch.arange(0), torch.arange(3)], [4, 3], generator).shape == (0, 3)
    assert bits(key().to("meta"), [torch.arange(3).to("meta")], [3], generator).shape == (3,)


@pytest.mark.parametrize("generator", GENERATORS)
def test_more_elements_than_words(generator: Generator) -> None:
    """Beyond 2**32 the counter has a second word: rows of equal low words differ, and parts are still slices."""
    sizes = [1 << 20, 1 << 20]
    rows, columns = torch.tensor([0, 4096, 8192, 5, (1 << 20) - 1]), torch.arange(1000)
    found = bits(key(), [rows, columns], sizes, generator)
    assert found.unique().numel() > found.numel() - 3
    assert torch.equal(bits(key(), [rows[2:3], columns[7:]], sizes, generator), found[2:3, 7:])


def test_philox_gives_the_known_answers() -> None:
    """Vectors of Random123 (`kat_vectors`, philox4x32 with 10 rounds)."""
    known = {
        (0, 0, 0, 0, 0, 0): "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
        (0xFFFFFFFF,) * 6: "408f276d 41c83b0e a20bc7c6 6d5451fd",
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0): "d16cfe09 94fdcceb 5001e420 24126ea1",
    }
    for given, answer in known.items():
        low, high = given[4], given[5] - (given[5] >> 31 << 32)
        found = philox([torch.tensor([c]) for c in given[:4]], torch.tensor(low | high << 32))
        assert " ".join(f"{int(w) & 0xFFFFFFFF:08x}" for w in found) == answer


def test_four_neighbours_share_a_block_of_philox() -> None:
    counter = [torch.tensor([c]) for c in (3, 2, 0, 0)]
    block = torch.cat(philox(counter, key()))
    assert torch.equal(bits(key(), [torch.tensor([2]), torch.arange(12, 16)], [3, 17], "philox")[0], block)


# -- keys --------------------------------------------------------------------------------------------------------------


def test_keys_of_seeds_steps_and_draws_differ() -> None:
    found = torch.cat([step_keys(torch.tensor([s, t]), 200) for s in range(20) for t in range(20)])
    assert found.unique().shape == (80_000,)
    assert step_keys(torch.tensor([1, 2]), 5).tolist() == step_keys(torch.tensor([1, 2]), 9)[:5].tolist()
    further = torch.stack([further_key(key(draw=d), n) for d in range(100) for n in range(4)])
    assert further.unique().shape == (400,)


def test_a_bit_of_a_seed_step_or_draw_changes_half_of_the_key() -> None:
    flips = []
    for seed, step in itertools.product(range(30), range(30)):
        plain = step_keys(torch.tensor([seed, step]), 1)[0]
        for bit in (0, 1, 7, 20):
            flips.append(plain ^ step_keys(torch.tensor([seed ^ 1 << bit, step]), 1)[0])
            flips.append(plain ^ step_keys(torch.tensor([seed, step ^ 1 << bit]), 1)[0])
    changed = torch.stack(flips)
    assert max(deviations(planes(changed)), deviations(planes(changed >> 32))) < BOUND


# -- quality -----------------------------------------------------------------------------------------------------------

STREAMS = [
    (0, 1),
    (1, 1),
    (12345, 1),
    (0, 2),
    (0, 3),
    (0, 256),
    (0, 768),
    (0, 1024),
    (0, 4096),
    (0, 8191),
    (7, 1 << 13),
]


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize(("start", "stride"), STREAMS)
def test_frequency_serial_and_bytes(generator: Generator, start: int, stride: int) -> None:
    """Each bit is half the time set; lags of a bit, pairs of bits and bytes show nothing, at any stride."""
    found = words(generator, key(3), start, stride)
    signs = planes(found)
    assert deviations(signs) < BOUND
    for lag in (1, 2, 3, 4, 8, 16, 64, 256, 1024, 4096):
        assert deviations(signs[:, lag:] * signs[:, :-lag]) < BOUND, lag
    pairs = signs @ signs.T / math.sqrt(N)
    assert float(pairs.fill_diagonal_(0).abs().max()) < BOUND
    for shift in (0, 8, 16, 24):
        byte = found >> shift & 255
        assert chi_square(byte, 256) < BOUND
        assert chi_square(byte[1:] << 8 | byte[:-1], 1 << 16) < BOUND


@pytest.mark.parametrize("generator", GENERATORS)
def test_runs_of_ups_and_of_masks(generator: Generator) -> None:
    """Permutations of four neighbours are equally frequent; runs in a mask of chance 0.1 have a geometric length."""
    found = words(generator, key(5), count=4 * N).view(-1, 4)
    order = found.argsort(1)
    codes = (order * torch.tensor([64, 16, 4, 1])).sum(1).unique(return_counts=True)[1].double()
    assert len(codes) == 24
    assert float((codes - N / 24).abs().max()) < BOUND * math.sqrt(N / 24)
    drops = (words(generator, key(6), count=4 * N) < 0.1 * 2**32).nonzero().flatten()
    gaps = drops.diff()
    for length in range(1, 40):
        expected = 0.1 * 0.9 ** (length - 1) * len(gaps)
        assert abs(int((gaps == length).sum()) - expected) < BOUND * math.sqrt(expected)


@pytest.mark.parametrize("generator", GENERATORS)
def test_streams_of_different_keys_are_independent(generator: Generator) -> None:
    """Of draws, steps and seeds that follow one another: no bit of one tells a bit of the other, at any small shift."""
    first = planes(words(generator, key(0, 0, 0)))
    for other in (key(0, 0, 1), key(0, 0, 2), key(0, 1, 0), key(0, 2, 0), key(1, 0, 0), further_key(key(), 1)):
        second = planes(words(generator, other))
        assert float((first @ second.T).abs().max()) / math.sqrt(N) < BOUND
        for shift in (1, 2, 4, 64, 1024):
            assert deviations(first[:, shift:] * second[:, :-shift]) < BOUND
            xored = second[:, torch.arange(N) ^ shift]  # a generator that only adds the key to the index shows here
            assert deviations(first * xored) < BOUND


@pytest.mark.parametrize("generator", GENERATORS)
def test_keys_that_differ_in_one_bit(generator: Generator) -> None:
    """Not what `step_keys` makes, but what a weak hash would fail."""
    plain = key(8)
    first = planes(words(generator, plain, count=1 << 14))
    for bit in range(64):
        changed = plain ^ torch.tensor(1) << bit
        second = planes(words(generator, changed, count=1 << 14))
        assert deviations(first * second) < BOUND, bit


@pytest.mark.parametrize("generator", GENERATORS)
def test_a_bit_of_the_index_or_key_changes_half_of_the_word(generator: Generator) -> None:
    """Avalanche: each of the 32 x 31 pairs of an input bit and an output bit flips half the time."""
    positions = torch.randint(0, 1 << 31, (1 << 14,), generator=torch.Generator().manual_seed(0))
    plain = bits(key(2), [positions], [1 << 31], generator)
    for bit in range(2 if generator == "philox" else 0, 31):  # the low two choose a word of a block of Philox
        flipped = bits(key(2), [positions ^ 1 << bit], [1 << 31], generator)
        assert deviations(planes((plain ^ flipped).to(torch.int64))) < BOUND, bit


def test_collisions() -> None:
    """Words of Philox collide as independent ones do; those of a hash of one key never do, as it is a bijection.

    A mask or a uniform number uses fewer bits than 32, where this shows no more: of 24 bits both collide as expected.
    """
    independent = words("philox", key(4), count=N)
    expected = N * N / 2**33
    assert abs(N - independent.unique().numel() - expected) < BOUND * math.sqrt(expected)
    assert words("hash", key(4), count=N).unique().numel() == N
    for generator in GENERATORS:
        short = words(generator, key(4), count=N) >> 8
        expected = N * N / 2**25
        assert abs(N - short.unique().numel() - expected) < BOUND * math.sqrt(expected)
