"""Finds the line after which a function may delete a value: the last one that reads it, if backward does not keep it.
Otherwise Python's local names would keep it until the function returns.

Memory is freed when no name is left for any view of it, so all names of a storage are deleted together.
"""

from collections.abc import Iterator

from ssdsl.ir.function import Function
from ssdsl.ir.value import Name
from ssdsl.lower.functions.views import made_again
from ssdsl.model.graph import Graph
from ssdsl.record import Record


class Lifetimes(Record):
    """The storages that end in each section, by its instructions; each is a map of its names to the sections that make
    them."""

    ends: dict[int, dict[int, list[dict[Name, int]]]]

    @classmethod
    def of(cls, function: Function, graph: Graph) -> "Lifetimes":
        """The lifetimes of values that a function makes, and that neither its results nor its backward keep."""
        uses, places = function.uses, graph.storages
        storages: dict[str, dict[Name, int]] = {}
        for name, maker in uses.makers.items():
            # A further version of a value (after a reshard), or a view of one from outside, ends by itself.
            root = Name(places[name.value].root) if name.value in places else name
            storage = str(root if root in uses.makers and not name.version else name)
            storages.setdefault(storage, {})[name] = maker.section
        kept = set(uses.outputs)
        if not any(section.compiled for section in function.sections):  # else torch decides what backward keeps
            kept.update(name for _, name in function.kept())
        kept -= made_again(function, graph).keys()
        ends: dict[int, dict[int, list[dict[Name, int]]]] = {}
        for together in storages.values():
            if kept.isdisjoint(together):
                last, instr = max(map(uses.last, together))
                ends.setdefault(last, {}).setdefault(instr, []).append(together)
        return cls(ends)

    def inside(self, section: int, instr: int) -> Iterator[Name]:
        """The names that a section made for itself only, and does not need after an instruction."""
        for names in self.ends.get(section, {}).get(instr, ()):
            if all(made == section for made in names.values()):
                yield from names

    def behind(self, section: int) -> Iterator[Name]:
        """The names that earlier sections made, and that nothing needs after this one."""
        for ended in self.ends.get(section, {}).values():
            yield from (name for names in ended for name, made in names.items() if made < section)
