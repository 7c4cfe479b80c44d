"""Short names for many: `h.0.attn`, `h.1.attn` and `h.2.attn` are `h.{0-2}.attn`, ranks 0 to 7 are `0-7`."""

from collections.abc import Iterable

from ssdsl.plan.regions import ranges

RUNS_SHOWN = 2


def merged(paths: Iterable[str]) -> str:
    """Paths that differ only in numbers, and have equally many words, as one path with the numbers that occur."""
    split = [path.split(".") for path in dict.fromkeys(paths)]
    return ".".join(_part([parts[i] for parts in split]) for i in range(len(split[0])))


def _part(words: list[str]) -> str:
    words = list(dict.fromkeys(words))
    return words[0] if len(words) == 1 else "{" + ",".join(ranges(map(int, words))) + "}"


def ranks(numbers: tuple[int, ...]) -> str:
    """`0-7, 16-23`; with more than two runs, the number of ranks and their range: `96 in 0-127`."""
    runs = ranges(numbers)
    return ", ".join(runs) if len(runs) <= RUNS_SHOWN else f"{len(numbers)} in {min(numbers)}-{max(numbers)}"
