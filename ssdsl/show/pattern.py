"""Joins the module paths of repeated layers: `h.0.attn`, `h.1.attn` and `h.2.attn` are `h.{0-2}.attn`."""

from collections.abc import Iterable


def merged(paths: Iterable[str]) -> str:
    """Paths that differ only in numbers, as one path that shows which numbers occur."""
    split = [path.split(".") for path in dict.fromkeys(paths)]
    return ".".join(_part([parts[i] for parts in split]) for i in range(len(split[0])))


def _part(words: list[str]) -> str:
    words = list(dict.fromkeys(words))
    return words[0] if len(words) == 1 else "{" + ",".join(_ranges(sorted(map(int, words)))) + "}"


def _ranges(numbers: list[int]) -> list[str]:
    """Consecutive numbers as `first-last`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
