"""Factors: the pieces that tensor axes are made of, in a union-find that refines.

An axis is a sequence of factors, outermost first. Uniting two sequences of the same total size cuts both at their
common boundaries: `[768]` and `[3, 256]` become the same `[3, 256]`, everywhere.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise


class Factors:
    """A growing set of factors, known by number."""

    def __init__(self) -> None:
        self._size: list[int] = []
        self._same_as: list[int] = []  # the parents of a union-find: roots are their own
        self._parts: list[tuple[int, ...]] = []  # the parts into which a root was divided; () for leaves

    def new(self, size: int) -> int:
        """Adds a factor of known size and nothing else; returns its number."""
        self._size.append(size)
        self._same_as.append(len(self._same_as))
        self._parts.append(())
        return len(self._size) - 1

    def size(self, factor: int) -> int:
        return self._size[factor]

    def root(self, factor: int) -> int:
        """The representative of all factors that are the same as this one."""
        while self._same_as[factor] != factor:
            self._same_as[factor] = self._same_as[self._same_as[factor]]
            factor = self._same_as[factor]
        return factor

    def leaves(self, factors: Iterable[int]) -> list[int]:
        """The sequence, fully refined; factors of size one vanish."""
        found: list[int] = []
        for factor in factors:
            factor = self.root(factor)
            if self._parts[factor]:
                found += self.leaves(self._parts[factor])
            elif self._size[factor] != 1:
                found.append(factor)
        return found

    def unite(self, a: Sequence[int], b: Sequence[int]) -> bool:
        """Makes two sequences the same by refining both; returns False, and changes nothing, if they have no common
        refinement.

        >>> factors = Factors()
        >>> qkv, heads, fused, other = factors.new(3), factors.new(4), factors.new(12), factors.new(8)
        >>> factors.unite([qkv, heads], [fused]), factors.leaves([fused])
        (True, [0, 1])
        >>> factors.unite([fused], [other])
        False
        """
        left, right = self.leaves(a), self.leaves(b)
        if self._is_empty(left) or self._is_empty(right):
            return self._unite_empty(left, right)
        # Each boundary has to divide the next: [2, 3] and [3, 2] have them at 1, 2, 3 and 6, and 2 does not divide 3.
        cuts = sorted(set(self._cuts(left)) | set(self._cuts(right)))
        if self._cuts(left)[-1] != self._cuts(right)[-1] or any(y % x for x, y in pairwise(cuts)):
            return False
        self._refine(left, cuts)
        self._refine(right, cuts)
        self._identify(self.leaves(left), self.leaves(right))
        return True

    def _identify(self, left: Sequence[int], right: Sequence[int]) -> None:
        for x, y in zip(left, right, strict=True):
            x, y = self.root(x), self.root(y)
            if x != y and not self._parts[x] and not self._parts[y]:
                self._same_as[max(x, y)] = min(x, y)

    def _is_empty(self, sequence: Sequence[int]) -> bool:
        return any(self._size[f] == 0 for f in sequence)

    def _unite_empty(self, left: Sequence[int], right: Sequence[int]) -> bool:
        """Sequences without elements have no boundaries to refine at: they are the same if their sizes are."""
        if [self._size[f] for f in left] != [self._size[f] for f in right]:
            return False
        self._identify(left, right)
        return True

    def segments(self, a: Sequence[int], b: Sequence[int]) -> list[tuple[list[int], list[int]]]:
        """Two sequences of the same total size, cut into the shortest runs whose sizes agree."""
        left, right = self.leaves(a), self.leaves(b)
        if self._is_empty(left):
            return [(left, right)]
        common = sorted(set(self._cuts(left)) & set(self._cuts(right)), reverse=True)
        return list(zip(self._runs(left, common), self._runs(right, common), strict=True))

    def _cuts(self, sequence: Sequence[int]) -> list[int]:
        """Sizes of all suffixes of a refined sequence, from 1 to the whole."""
        sizes = [1]
        for factor in reversed(sequence):
            sizes.append(sizes[-1] * self._size[factor])
        return sizes

    def _runs(self, sequence: Sequence[int], common: list[int]) -> list[list[int]]:
        """A sequence, cut at boundaries that are common to two sequences."""
        runs: list[list[int]] = []
        rest = math.prod(self._size[f] for f in sequence)
        for factor in sequence:
            if rest in common:
                runs.append([])
            runs[-1].append(factor)
            rest //= self._size[factor]
        return runs

    def _refine(self, sequence: Sequence[int], cuts: list[int]) -> None:
        """Cuts each factor of a sequence at the boundaries inside it."""
        low = 1
        for factor in reversed(sequence):
            high = low * self._size[factor]
            inner = [c for c in cuts if low <= c <= high]
            if len(inner) > 2 and not self._parts[self.root(factor)]:
                pieces = [self.new(y // x) for x, y in pairwise(inner)]
                self._parts[self.root(factor)] = tuple(reversed(pieces))
            low = high
