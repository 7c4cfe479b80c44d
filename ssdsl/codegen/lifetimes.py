"""Where a function may let go of what it has made: behind the last line that reads a tensor which backward does not
keep. Without a word, Python's local names would hold it until the function returns.

A tensor is gone when no name is left for any view of it, so a storage's names go together.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ssdsl.ir.function import Backward, Function, Op, reads_of, results_of
from ssdsl.ir.value import Name
from ssdsl.model.storage import Storage

Moment = tuple[int, int]  # a section, and an instruction of it


@dataclass(frozen=True)
class Lifetimes:
    """The storages that end at a moment, each as its names with the section that makes them."""

    ends: dict[Moment, list[dict[Name, int]]]

    @classmethod
    def of(cls, function: Function, places: Mapping[str, Storage]) -> "Lifetimes":
        """Of what a function makes and neither it nor its backward has to keep."""
        made = dict(_made(function))
        lasts: dict[Name, Moment] = dict(made)
        for moment, names in _read(function):
            lasts |= {name: moment for name in names if name in made}
        storages: dict[str, dict[Name, int]] = {}
        for name, (section, _) in made.items():
            root = Name(places[name.value].root) if name.value in places else name
            storages.setdefault(str(root if root in made and not name.version else name), {})[name] = section
        kept = {*_kept(function), *(o.name for o in function.outputs)}
        ends: dict[Moment, list[dict[Name, int]]] = {}
        for together in storages.values():
            if kept.isdisjoint(together):
                ends.setdefault(max(lasts[name] for name in together), []).append(together)
        return cls(ends)

    def inside(self, section: int, instr: int) -> Iterator[Name]:
        """What a section has made for itself alone and needs no more behind an instruction."""
        for names in self.ends.get((section, instr), ()):
            if all(made == section for made in names.values()):
                yield from names

    def behind(self, section: int) -> Iterator[Name]:
        """What earlier sections have made and nobody needs behind this one."""
        for (last, _), ended in self.ends.items():
            if last == section:
                yield from (name for names in ended for name, made in names.items() if made < section)


def _made(function: Function) -> Iterator[tuple[Name, Moment]]:
    for number, section in enumerate(function.sections):
        for n, instr in enumerate(section.body):
            yield from ((var.name, (number, n)) for var in results_of(instr))


def _read(function: Function) -> Iterator[tuple[Moment, tuple[Name, ...]]]:
    for number, section in enumerate(function.sections):
        for n, instr in enumerate(section.body):
            yield (number, n), reads_of(instr)


def _kept(function: Function) -> Iterator[Name]:
    """What backward keeps: what operators save for it, and what enters sections that it runs again."""
    if function.backward is Backward.NONE:
        return
    for section in function.sections:
        own = {var.name for instr in section.body for var in results_of(instr)}
        for instr in section.body:
            if section.recompute:
                yield from (name for name in reads_of(instr) if name not in own)
            elif isinstance(instr, Op):
                yield from (name for name in instr.reads if name.value in instr.saved.inputs)
                yield from (var.name for var in instr.results if var.name.value in instr.saved.outputs)
