"""Data that the functions of one role's file share: names, groups and layers."""

import itertools
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ssdsl.codegen.body import RESERVED, Body
from ssdsl.codegen.expressions import GroupName
from ssdsl.codegen.origins import Origins
from ssdsl.codegen.python_words import Identifiers
from ssdsl.codegen.shapes import shape_text
from ssdsl.ir.function import Backward, Function, Instr, OpPart
from ssdsl.ir.layout import Submesh
from ssdsl.ir.program import Program, Role
from ssdsl.ir.value import Name, Var
from ssdsl.model.dims.layers import module_of
from ssdsl.model.ops.op import imported_name
from ssdsl.model.ops.rows import modules
from ssdsl.record import Record
from ssdsl.runtime import NAMES


class RunText(Record):
    """A compiled run as a function of the file: its name, the operators in its lines, by their numbers, and the number
    of the line that calls it."""

    name: str
    lines: dict[int, OpPart]
    call: int

    @property
    def first(self) -> OpPart:
        """Its first operator."""
        return next(iter(self.lines.values()))


class SectionText(Record):
    """A section as a function: the `text` behind its name. Its parameters (`outside`, by their words) and results
    (`values`) are positions among the names of the section; `lines` has the numbers of the instructions in its body's
    lines, `runs` the same for the functions of its compiled runs, by their names. `calls` has the number of the first
    instruction of the run that a line calls."""

    text: str
    outside: dict[str, int]
    values: tuple[int, ...]
    lines: dict[int, int]
    groups: tuple[tuple[str, ...], ...]
    runs: tuple[tuple[str, dict[int, int]], ...] = ()
    calls: dict[int, int] = field(default_factory=dict)


@dataclass
class Common:
    """Data that the files of all roles share. `sections` are the texts of sections, one for each kind and mesh."""

    program: Program
    sections: dict[Hashable, SectionText] = field(default_factory=dict)

    @cached_property
    def origins(self) -> Origins:
        """What the program's instructions come from."""
        return Origins(self.program)

    @cached_property
    def modules(self) -> tuple[str, ...]:
        """The Python modules that the operators' calls need."""
        return modules(self.program.graph.operators)

    @cached_property
    def parameters(self) -> dict[int, frozenset[Name]]:
        """The weights and buffers that each function reads."""
        return {f.number: frozenset(p.var.name for p in f.parameters) for f in self.program.functions}

    @cached_property
    def variables(self) -> dict[int, dict[Name, Var]]:
        """The local values of each function."""
        return {f.number: f.variables() for f in self.program.functions}

    @cached_property
    def gathered(self) -> dict[Submesh, set[str]]:
        """The weights that are gathered where they are read (ZeRO-3)."""
        found: dict[Submesh, set[str]] = {}
        for flat in self.program.flats:
            if flat.sharded.weights:
                found.setdefault(flat.submesh, set()).update(flat.weights)
        return found


class LineInstr(Record):
    """An instruction in a line of the file: the number of the function of the program that it is in, and the layer that
    this line runs for. A line that `calls` a compiled run has the first operator of that."""

    function: int
    layer: str
    instr: Instr
    calls: bool = False


@dataclass
class FileScope:
    """The names of the file; `groups`, `functions` and `runs` grow as its text is written. `sections` are the texts of
    those with compiled runs, whose names are the file's. `lines` has the instructions in each line of each function of
    the file, counted from its `def`; `shapes` the texts of the shapes that each of them reads, by names in it. No
    function may use `words`."""

    common: Common
    role: Role
    names: Identifiers = field(default_factory=lambda: Identifiers((*NAMES, *RESERVED, "c")))  # `prepare` has a `c`
    groups: dict[tuple[str, ...], str] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)  # text behind the name -> name
    runs: dict[str, str] = field(default_factory=dict)  # the same
    sections: dict[Hashable, SectionText] = field(default_factory=dict)
    lines: dict[tuple[str, int], list[LineInstr]] = field(default_factory=dict)
    shapes: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    words: Identifiers = field(init=False)

    def __post_init__(self) -> None:
        """Reserves the names of axes for groups, those of indices in time for arguments, and those of modules."""
        axes = [a for a, _ in self.role.submesh.mesh.axes]
        for size in range(1, len(axes) + 1):
            for chosen in itertools.combinations(axes, size):
                self.names.name("group " + "_".join(chosen), "_".join(chosen))
        times = dict.fromkeys(t.name for f in self.program.functions for t in f.time)
        for word in (w for t in times for w in (t, f"n_{t}") if w not in axes):
            self.names.unused(word)
        for module in self.common.modules:
            self.names.unused(imported_name(module).partition(".")[0])
        self.words = self.names.copy()
        for function in self.blocks:
            self.names.name(f"function {function.number}", function.name)

    def note(
        self,
        name: str,
        first: int,
        lines: Mapping[int, Instr],
        function: int,
        layer: str = "",
        *,
        calls: bool = False,
    ) -> None:
        """Notes the instructions in the body of a Python function that a function of the program calls for a layer. The
        body begins `first` lines behind the `def`."""
        for line, instr in lines.items():
            self.lines.setdefault((name, first + line), []).append(LineInstr(function, layer, instr, calls))

    def describe(self, name: str, function: Function, reads: Mapping[str, Name]) -> None:
        """Notes the shapes of what a Python function reads when a function of the program calls it."""
        known, axes = self.shapes.setdefault(name, {}), function.submesh.axes
        for word, read in reads.items():
            var = self.common.variables[function.number][read]
            known.setdefault(word, []).append(shape_text(var, self.program.graph, axes))

    def run(self, text: str, word: str) -> str:
        """The name of the compiled function with this text behind its name; a new one is near to `word`."""
        if text not in self.runs:
            self.runs[text] = self.names.unused(word)
        return self.runs[text]

    @cached_property
    def blocks(self) -> tuple[Function, ...]:
        """The functions that the role runs."""
        return self.program.functions_of(self.role)

    def block(self, number: int) -> str:
        """The Python name of a function of the program."""
        return self.names.name(f"function {number}")

    @property
    def program(self) -> Program:
        """The program that the role is a part of."""
        return self.common.program

    def group(self, axes: tuple[str, ...]) -> str:
        """The name of the group along some axes; adds the group if it is new."""
        ordered = tuple(a for a, _ in self.role.submesh.mesh.axes if a in axes)
        return self.groups.setdefault(ordered, self.names.name("group " + "_".join(ordered)))

    def body(self, function: Function, layer: str, taken: Identifiers, group: GroupName) -> Body:
        """An empty body of a function, or of a part of it that is called for a layer."""
        graph = self.program.graph

        def unlearned(op: OpPart) -> bool:
            learning = (graph.values[v.name.value].differentiable for v in op.results)
            return function.backward is not Backward.NONE and not op.learns and any(learning)

        weights = WeightTexts(self.common, function, layer)
        return Body(graph.by_name, group, weights.word, weights.changed, unlearned, taken.copy())


class WeightTexts:
    """The texts of a function's weights and buffers in a layer. The layer's own have the rest of their names; others
    that are gathered (ZeRO-3) have their full names, as they are dropped where the layer ends."""

    def __init__(self, common: Common, function: Function, layer: str) -> None:
        self.common = common
        self.within = f"{module_of(layer)}." if layer else ""
        self.gathered = common.gathered.get(function.submesh, set())
        self.names = common.parameters[function.number]

    def word(self, name: Name) -> str | None:
        """The text that reads a weight; None for other values, and for weights that come from outside."""
        if name not in self.names:
            return None
        if name.value in self.common.program.graph.running:
            return self.changed(name.value)
        if name.value.startswith(self.within):
            return f'w["{name.value.removeprefix(self.within)}"]'
        return f'w.named("{name.value}")' if name.value in self.gathered else None

    def among(self, names: Iterable[Name]) -> dict[str, Name]:
        """The weights and buffers among some values, by their names in the layer."""
        return {name.value.removeprefix(self.within): name for name in names if self.word(name) is not None}

    def changed(self, buffer: str) -> str:
        """The text of a buffer's value after the step."""
        inside = buffer.startswith(self.within)
        return f'w.next["{buffer.removeprefix(self.within)}"]' if inside else f'weights.under().next["{buffer}"]'
