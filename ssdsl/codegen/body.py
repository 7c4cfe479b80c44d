"""Writes the bodies of functions: instructions as lines, with names that depend on the structure only.

Layers that compute the same get the same text, and so one function.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ssdsl.codegen.expressions import GroupName, assignment, conversion_text, expression
from ssdsl.codegen.python_words import Identifiers, tuple_of
from ssdsl.ir.function import (
    Conversion,
    FunctionOutput,
    Instr,
    OpPart,
    Side,
    Write,
    reads_of,
    results_of,
)
from ssdsl.ir.value import Name
from ssdsl.model.graph import Operator, refs_in

RESERVED = ("w", "weights", "prefix", "device", "torch", "aten", "F", "run", "step", "prepare", "constants")
ATTENDING = {"query": "q", "key": "k", "value": "v"}  # parameters of an attention, and the names of their operands
CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")  # begins a word of a name, as in `ChunkedLoss`


@dataclass(slots=True)
class Body:
    """Lines of Python over local names, with the values that they read from `outside`, and those that they `made`.

    Operators that are `unlearned` run under `no_grad`, as in the model: autograd would otherwise keep tensors that no
    backward reads. `weights` gives the text of a weight or buffer, None for other values; `changed` the text of a
    buffer's value after the step. `words` has names for some results; others are named after their operators.
    """

    operators: dict[str, Operator]
    group: GroupName
    weights: Callable[[Name], str | None]
    changed: Callable[[str], str]
    unlearned: Callable[[OpPart], bool]
    names: Identifiers
    lines: list[str] = field(default_factory=list)
    outside: dict[Name, str] = field(default_factory=dict)
    made: dict[Name, str] = field(default_factory=dict)
    instructions: dict[int, Instr] = field(default_factory=dict)  # by the number of the line
    words: dict[Name, str] = field(default_factory=dict)
    is_within: bool = False  # whether the last line is under `no_grad`
    started: dict[Name, str] = field(default_factory=dict)  # by result of a conversion in flight, the name of its start
    departing: frozenset[Name] = frozenset()  # results of conversions that another function awaits

    def read(self, name: Name) -> str:
        """The Python name of a value; one that was not made here comes from outside."""
        if name in self.made:
            return self.made[name]
        if (weight := self.weights(name)) is not None:
            return weight
        if name not in self.outside:
            self.outside[name] = self.names.name(f"in {name}", f"x{len(self.outside) or ''}")
        return self.outside[name]

    def output(self, output: FunctionOutput) -> str:
        """The text of a value that leaves the function. If its gradient is needed for weights only, `halves` leaves it
        to the second half of the backward."""
        name = self.read(output.name)
        return f"halves(lambda x: x, (), ({name},))" if output.wgrad_only else name

    def make(self, name: Name, word: str) -> str:
        """A new Python name, near to `word`, for a local value."""
        self.made[name] = self.names.unused(word)
        return self.made[name]

    def add(self, instr: Instr, used: frozenset[Name]) -> None:
        """Appends an instruction; only those of its results that are `used` get a name."""
        line = self._line(instr, [self.read(r) for r in reads_of(instr)], used)
        self._of_instr(instr, line, begins=isinstance(instr, OpPart) and self.unlearned(instr))

    def start(self, instr: Conversion) -> None:
        """Appends the start of a conversion that `add` will await."""
        value, *also = map(self.read, reads_of(instr))
        word = self.started[instr.result.name] = self.names.unused("started")
        self._of_instr(instr, f"{word} = {conversion_text(instr, value, self.group, also, 'start_reshard')}")

    def _of_instr(self, instr: Instr, line: str, *, begins: bool = False) -> None:
        if begins and not self.is_within:
            self.lines.append("with torch.no_grad():")
        # conversions that follow under `no_grad` and have no gradient stay in the same `with`
        stays = self.is_within and all(v.gradient is None for v in results_of(instr))
        self.instructions[len(self.lines)] = instr
        self._append(line, within=begins or stays)

    def call(self, text: str) -> None:
        """Appends the call of a layer's function."""
        self._append(text, within=False)

    def drop(self, names: Iterable[Name]) -> None:
        """Appends a `del` of values that nothing reads any more."""
        if words := [self.made[name] for name in names if name in self.made]:
            self._append(f"del {', '.join(words)}", within=self.is_within)

    def _append(self, line: str, *, within: bool) -> None:
        self.lines.append(f"    {line}" if within else line)
        self.is_within = within

    def _line(self, instr: Instr, reads: list[str], used: frozenset[Name]) -> str:
        match instr:
            case Conversion():
                started, called = self.started.get(instr.result.name), "reshard"
                if instr.result.name in self.departing:
                    called = "start_reshard"
                text = conversion_text(instr, reads[0], self.group, reads[1:], called)
                right = f"{started}.wait()" if started else text
                word = self.words.get(instr.result.name, self._word(instr.source))
                return f"{self.make(instr.result.name, word)} = {right}"
            case OpPart():
                return self._operator(instr, reads, used)
            case Write():
                return self._written(instr, reads[0])

    def _operator(self, op: OpPart, reads: list[str], used: frozenset[Name]) -> str:
        """The line of an operator; results that nothing uses are called `_`."""
        operator = self.operators[op.operator]
        text = self._call(operator, op, reads)
        word = CAPITAL.sub("_", operator.kind).lower().strip("_")  # the kind of a user's function is its class
        kept = [v.name in used for v in op.results]
        words = [self.words.get(v.name, word) for v in op.results]
        outputs = [self.make(v.name, w) if k else "_" for v, w, k in zip(op.results, words, kept, strict=True)]
        return f"{assignment(operator, outputs)} = {text}"

    def _call(self, operator: Operator, op: OpPart, reads: list[str]) -> str:
        """The operator's expression; with a backward in halves, a function of the operands that have gradients."""
        if op.sides is None:
            return expression(operator, op, reads, self.group)
        own = re.findall(r"\w+", expression(operator, op, ["_"] * len(reads), self.group))
        formals, words = _parameters(reads, op.sides, own)
        given = [
            tuple_of(r for r, s in zip(reads, op.sides, strict=True) if s is side)
            for side in (Side.ACTIVATION, Side.WEIGHT)
        ]
        text = expression(operator, op, words, self.group)
        return f"halves(lambda {', '.join(formals)}: {text}, {', '.join(given)})"

    def _written(self, write: Write, value: str) -> str:
        """The line with which a buffer, or its running part, takes a value."""
        buffer = self.changed(write.buffer)
        if not write.slices:
            return f"{buffer}.copy_({value}.detach())"
        places = ((step.target, step.axes[0]) for step in write.slices)
        cuts = ", ".join(f"({cut.dim}, {cut.outer}, {cut.at or cut.count}, {index})" for cut, index in places)
        return f"put({buffer}, {value}, [{cuts}])"

    def _word(self, source: Name) -> str:
        """The word for a converted value: that of its source without its number, `x` for one from outside."""
        return self.made.get(source, "").rstrip("_0123456789") or "x"


def attending(instrs: Sequence[Instr], operators: dict[str, Operator]) -> dict[Name, str]:
    """Names for what an attention reads as its query, key and value, and for the values of which these are made step by
    step: `q, k, v = addmm.split(64, dim=2)`, `q_2 = q.reshape(2, 64, 2, 32)`.

    Values inside of a step with branches, as of a rotation of positions, have no such names, those around it have.
    """
    local = {v.name for instr in instrs for v in results_of(instr)}
    readers: dict[Name, list[Instr]] = {}
    for instr in instrs:
        for name in local.intersection(reads_of(instr)):
            readers.setdefault(name, []).append(instr)
    leads: dict[Name, Name] = {}  # a value that leads to an operand of an attention alone, and the operand
    ends: dict[Name, set[Name]] = {}  # by operand, the values that lead to it from which nothing was followed yet
    words: dict[Name, str] = {}
    for instr in reversed(instrs):
        if isinstance(instr, OpPart):
            for read, parameter in zip(instr.reads, _parameter_names(operators[instr.operator]), strict=True):
                if read in local and parameter in ATTENDING:
                    leads[read], ends[read], words[read] = read, {read}, ATTENDING[parameter]
        results = [v.name for v in results_of(instr)]
        for name in results:
            if name in leads and ends[leads[name]] == {name}:
                words[name] = words[leads[name]]
        is_product = isinstance(instr, OpPart) and operators[instr.operator].row.contraction
        if len(results) == 1 and results[0] in leads and not is_product:
            operand = leads[results[0]]
            sources = {
                name
                for name in local.intersection(reads_of(instr))
                if all(leads.get(v.name) == operand for reader in readers[name] for v in results_of(reader))
            }
            leads |= dict.fromkeys(sources, operand)
            ends[operand] = ends[operand] - {*results} | sources
    return words


def _parameter_names(operator: Operator) -> list[str]:
    """The parameter of each operand of an attention; empty words for those of other operators."""
    given = operator.args[0].given(operator.args[1:], dict(operator.kwargs))
    names = [name for name, item in given.items() for _ in refs_in(item)]
    return names if ATTENDING.keys() <= {*names} else [""] * len(names)


def _parameters(reads: list[str], sides: tuple[Side, ...], taken: Sequence[str]) -> tuple[list[str], list[str]]:
    """The parameters of a function of the operands with gradients, activations first; and all operands' names in it.

    A weight's parameter is the last word of its name, unless the function's text uses that already (`taken`).
    """
    names = Identifiers((*RESERVED, *taken))
    for read in (r for r, s in zip(reads, sides, strict=True) if s is Side.FIXED):
        names.unused(read)
    words = list(reads)
    formals = []
    for side in (Side.ACTIVATION, Side.WEIGHT):
        for k in (k for k, s in enumerate(sides) if s is side):
            word = re.sub(r".*[.\[]|\W", "", reads[k].removesuffix("]"))
            words[k] = names.name(f"operand {k}", word if side is Side.WEIGHT else "x")
            formals.append(words[k])
    return formals, words
