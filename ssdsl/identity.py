"""Objects that are told apart by identity: records of operators have places in the text that comparisons ignore, and
tensors compare element by element.

>>> first, second = [1], [1]
>>> len(distinct([first, second, first]))
2
>>> names = ByIdentity([(first, "a")])
>>> first in names, second in names, names[first]
(True, False, 'a')
"""

from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


class ByIdentity(MutableMapping[K, V]):
    """A mapping in the order of insertion. It keeps its keys alive, so no other object gets the identity of one."""

    __slots__ = ("_items",)

    def __init__(self, items: Iterable[tuple[K, V]] = ()) -> None:
        self._items: dict[int, tuple[K, V]] = {id(item[0]): item for item in items}

    def __getitem__(self, key: K) -> V:
        return self._items[id(key)][1]

    def __setitem__(self, key: K, value: V) -> None:
        self._items[id(key)] = key, value

    def __delitem__(self, key: K) -> None:
        del self._items[id(key)]

    def __contains__(self, key: object) -> bool:
        return id(key) in self._items

    @overload
    def get(self, key: K, /) -> V | None: ...

    @overload
    def get(self, key: K, /, default: V | T) -> V | T: ...

    def get(self, key: K, /, default: Any = None) -> Any:
        """The value of a key; the default if it has none."""
        item = self._items.get(id(key))
        return default if item is None else item[1]

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self._items.values())

    def __len__(self) -> int:
        return len(self._items)


def distinct(items: Iterable[K]) -> list[K]:
    """Each object once, in the order of the first time that it comes."""
    return [*{id(item): item for item in items}.values()]


def places_of(items: Iterable[K]) -> list[tuple[K, list[int]]]:
    """Each object once, with its positions among the items.

    >>> places_of([None, "a", None])
    [(None, [0, 2]), ('a', [1])]
    """
    found: dict[int, tuple[K, list[int]]] = {}
    for position, item in enumerate(items):
        if (known := found.get(id(item))) is None:
            known = found[id(item)] = item, []
        known[1].append(position)
    return [*found.values()]
