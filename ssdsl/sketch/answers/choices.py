"""Chooses a branch of each `either` for each turn of the loop around it, and writes the plan without `either`.

What a branch changes is measured by whole plans: one kind of layer after the other takes it everywhere, and that is
simulated. The differences belong in equal parts to the layers of that kind on each device. So how many of them take the
branch is, for the devices of a stage, a choice of the least time within a memory: exact in these differences, by the
Pareto front of time and memory over the kinds. The plan that is chosen is simulated like any other; one that needs more
memory than it promised is followed by one that promises so much less.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, product
from textwrap import dedent, indent
from typing import assert_never

from ssdsl.cluster.cluster import Cluster
from ssdsl.ir.comm import Transfer
from ssdsl.ir.program import Program
from ssdsl.lang import nodes
from ssdsl.plan.interpret import context_without_errors
from ssdsl.plan.model_index import ModelIndex
from ssdsl.plan.paths import match_paths, numbered_paths
from ssdsl.record import Record
from ssdsl.simulate.report import DeviceReport, Report
from ssdsl.sketch.sketch import Sketch, Values

Branches = Mapping[str, tuple[int, ...]]  # by the name of a choice: the branch of each of its turns
Probe = Callable[[Values], Report | None]  # the simulated step under these values; None if they are refused


class LayerTurns(Record):
    """The turns of a choice: the number that they have in the plan, and those that they may have; the kind of layer
    that each is about, and the devices, by their names in reports, on which it runs."""

    own: int
    numbers: tuple[int, ...]
    kinds: tuple[int, ...]
    devices: tuple[frozenset[str], ...]
    slowness: tuple[float, ...] = ()  # seconds that a byte of what each turn's operators send takes, at most

    def alike(self, kind: int) -> list[int]:
        """The numbers of the turns about layers of a kind."""
        return [turn for turn, other in enumerate(self.kinds) if other == kind]


def is_open(sketch: Sketch) -> bool:
    """Whether the plan leaves a choice between branches open."""
    return bool(sketch.script.choices)


def turns_of(
    sketch: Sketch, values: Values, model: ModelIndex, program: Program, cluster: Cluster
) -> dict[str, LayerTurns]:
    """The choices that have several turns, in the plan's order."""
    ctx = context_without_errors(sketch.script, model, sketch.overrides(values), sketch.folder)
    model = ctx.model  # with what the plan changes of it
    where: dict[str, set[str]] = {}
    for role in program.roles:
        for function in program.functions_of(role):
            for op in function.operators():
                where.setdefault(op.operator, set()).add(role.name)
    sent = dict[str, float]()
    for message in (m for m in program.messages if isinstance(m, Transfer) and m.value in model.graph.makers):
        paths = (ranks for ranks, _ in message.forward.paths(message.source, message.target))
        seconds = max(1 / cluster.link(ranks).message_bandwidth for ranks in paths)
        maker = model.graph.makers[message.value].name
        sent[maker] = max(seconds, sent.get(maker, 0.0))
    kinds: dict[tuple[int, ...], int] = {}
    found = {}
    for name, choice in ctx.facts.choices.items():
        if len(choice.turns) > 1 and len({choice.own, *choice.numbers}) > 1 and can_be_unlike(sketch.script, name):
            layers = [model.ordered(operators) for operators in choice.turns]
            calls = [tuple(model.calls[o.name] for o in layer) for layer in layers]
            devices = [frozenset(r for o in layer for r in where.get(o.name, ())) for layer in layers]
            numbers = tuple(kinds.setdefault(call, len(kinds)) for call in calls)
            slowness = tuple(max((sent.get(o.name, 0.0) for o in layer), default=0.0) for layer in layers)
            found[name] = LayerTurns(choice.own, choice.numbers, numbers, tuple(devices), slowness)
    return found


# -- which branches ----------------------------------------------------------------------------------------------------


class Effect(Record):
    """What it changes on a device if one turn takes a branch: seconds of a step, and bytes of the peak."""

    seconds: float
    size_bytes: float

    def __str__(self) -> str:
        time, memory = "longer" if self.seconds > 0 else "shorter", "more" if self.size_bytes > 0 else "less"
        return f"{1e3 * abs(self.seconds):,.4g} ms {time}, {abs(self.size_bytes) / 1e6:,.0f} MB {memory}"

    def __sub__(self, other: "Effect") -> "Effect":
        return Effect(self.seconds - other.seconds, self.size_bytes - other.size_bytes)


Group = tuple[str, int]  # a choice and a kind of layer


class OpenChoices(Record):
    """The choices of a plan under some values of its params, with what each branch changes."""

    turns: Mapping[str, LayerTurns]
    own: Mapping[str, int]  # the branch that all turns of a choice have in the plan that was simulated
    report: Report  # of that plan
    effects: Mapping[tuple[str, Group, int], Effect]  # by device, group and branch
    compresses: bool = False  # whether the plan trains another model with other numbers

    @property
    def as_it_is(self) -> dict[str, tuple[int, ...]]:
        """The numbers of the plan that was simulated."""
        return {name: (self.own[name],) * len(those.kinds) for name, those in self.turns.items()}

    def behind(self, name: str, taken: Sequence[int], number: int) -> list[int]:
        """The turns of a choice whose number stands behind another one in its list, those on the fastest links
        first."""
        those = self.turns[name]
        found = [t for t, n in enumerate(taken) if those.numbers.index(n) > those.numbers.index(number)]
        return sorted(found, key=lambda turn: those.slowness[turn])

    def said(self, name: str, turn: int, taken: int, other: int) -> str:
        """What another branch than the one that is taken would change for a turn: seconds of a step, and memory."""
        if (those := self.turns.get(name)) is None:
            return ""
        group = name, those.kinds[turn]
        for device in sorted(those.devices[turn]):
            here, there = (self._effect(device, group, branch) for branch in (taken, other))
            if here is not None and there is not None:
                return f" ({there - here})"
        return ""

    def _effect(self, device: str, group: Group, branch: int) -> Effect | None:
        """What a turn of a group changes on a device with a branch; None if that is not known."""
        return Effect(0.0, 0.0) if branch == self.own[group[0]] else self.effects.get((device, group, branch))

    @classmethod
    def of(cls, turns: Mapping[str, LayerTurns], values: Values, report: Report, probe: Probe) -> "OpenChoices":
        """Measures all branches by whole plans."""
        own = {name: values.get(name, those.own) for name, those in turns.items()}
        effects: dict[tuple[str, Group, int], Effect] = {}
        before = {device.name: device for device in report.devices}
        for name, those in turns.items():
            for kind, branch in product(sorted({*those.kinds}), those.numbers):
                alike = those.alike(kind)
                if branch == own[name]:
                    continue
                other = probe({**values, **{f"{name}@{turn}": branch for turn in alike}})
                for device in other.devices if other is not None else ():
                    here = sum(device.name in those.devices[turn] for turn in alike)
                    if here and device.name in before:
                        effects[device.name, (name, kind), branch] = _effect(before[device.name], device, here)
        return cls(turns, own, report, effects)

    def best(self, memory: float, less: Mapping[str, float]) -> dict[str, tuple[int, ...]] | None:
        """The branch of each turn: on each device the fastest within a share of its memory, of which it gets `less`
        bytes; where none fits, the one that needs least. None if nothing differs from the plan's own."""
        chosen = {name: [self.own[name]] * len(those.kinds) for name, those in self.turns.items()}
        for device in self.report.devices:
            room = float("inf")
            if device.capacity_bytes:
                room = memory * device.capacity_bytes - device.peak_bytes - less.get(device.name, 0.0)
            for (name, kind), counts in self._counts(device, room).items():
                those = self.turns[name]
                mine = [turn for turn in those.alike(kind) if device.name in those.devices[turn]]
                branches = [branch for branch, count in counts.items() for _ in range(count)]
                for turn, branch in zip(mine, branches, strict=False):
                    chosen[name][turn] = branch
        found = {name: tuple(branches) for name, branches in chosen.items()}
        return None if all(set(branches) == {self.own[name]} for name, branches in found.items()) else found

    def _counts(self, device: DeviceReport, room: float) -> dict[Group, dict[int, int]]:
        """How many of the turns of each group take each branch, for the least seconds within a room."""
        front: list[tuple[float, float, dict[Group, dict[int, int]]]] = [(0.0, 0.0, {})]
        for name, those in self.turns.items():
            for kind in sorted({*those.kinds}):
                group = name, kind
                count = sum(device.name in those.devices[turn] for turn in those.alike(kind))
                options = [*self._options(device.name, group, count)]
                merged = (
                    (s + seconds, b + size, {**taken, group: counts})
                    for (s, b, taken), (seconds, size, counts) in product(front, options)
                )
                front = [*_pareto(merged)]
        fitting = [one for one in front if one[1] <= room]
        return min(fitting, key=lambda one: one[0])[2] if fitting else min(front, key=lambda one: one[1])[2]

    def _options(self, device: str, group: Group, count: int) -> Iterator[tuple[float, float, dict[int, int]]]:
        """Yields the ways in which turns of a group may take branches: seconds, bytes, and the number of each."""
        own = self.own[group[0]]
        others = [b for b in self.turns[group[0]].numbers if (device, group, b) in self.effects]
        for taken in product(range(count + 1), repeat=len(others)):
            if sum(taken) <= count:
                effects = [self.effects[device, group, branch] for branch in others]
                seconds = sum(n * effect.seconds for n, effect in zip(taken, effects, strict=True))
                size = sum(n * effect.size_bytes for n, effect in zip(taken, effects, strict=True))
                yield seconds, size, {**dict(zip(others, taken, strict=True)), own: count - sum(taken)}


def with_number(branches: Branches, name: str, turns: Iterable[int], number: int) -> dict[str, tuple[int, ...]]:
    """The branches with this one for some turns of a choice."""
    chosen = {*turns}
    return {**branches, name: tuple(number if t in chosen else n for t, n in enumerate(branches[name]))}


def _effect(before: DeviceReport, after: DeviceReport, turns: int) -> Effect:
    seconds = (after.busy_s + after.exposed_s - before.busy_s - before.exposed_s) / turns
    return Effect(seconds, (after.peak_bytes - before.peak_bytes) / turns)


def _pareto(
    ways: Iterable[tuple[float, float, dict[Group, dict[int, int]]]],
) -> Iterator[tuple[float, float, dict[Group, dict[int, int]]]]:
    """Yields the ways that no other one beats in both seconds and bytes, the fastest first."""
    least = float("inf")
    for way in sorted(ways, key=lambda way: way[:2]):
        if way[1] < least:
            least = way[1]
            yield way


# -- in the text -------------------------------------------------------------------------------------------------------


Said = Callable[[str, int, int, int], str]  # of a choice, a turn and its branch: what another branch would change


def with_branches(
    script: nodes.Script,
    branches: Branches,
    model: ModelIndex | None = None,
    said: Said = lambda name, turn, taken, other: "",
) -> str:
    """The text of a plan in which each of these choices is the branch that is taken, with the others in comments. A
    loop whose turns take unlike branches is written once for each run of turns that are alike; that needs the model."""
    text = script.span.source.text
    for statement in reversed(script.statements):
        inside = [node for node in nodes.walk(statement) if isinstance(node, nodes.ChoiceStatement)]
        mine = [(n, c) for n, c in script.choices.items() if n in branches and any(c is node for node in inside)]
        if not mine:
            continue
        start, end = _line(text, statement.span.start), _end(text, statement)
        count = max(len(branches[name]) for name, _ in mine)
        turns = [*zip(*(_for_all(branches[name], count) for name, _ in mine), strict=True)]
        runs = [[n for n, _ in run] for _, run in groupby(enumerate(turns), key=lambda pair: pair[1])]
        if (listed := _listed(text, statement, mine, turns)) is not None:
            text = text[:start] + listed + text[end:]
            continue
        copies = []
        for run in runs:
            taken = [(c, b, partial(said, n, run[0], b)) for (n, c), b in zip(mine, turns[run[0]], strict=True)]
            values = (
                _these(statement, run, model) if len(runs) > 1 and isinstance(statement, nodes.ForStatement) else None
            )
            copies.append(_resolved(text, statement, taken, values))
        text = text[:start] + "\n".join(copies) + text[end:]
    return text


def _listed(
    text: str, loop: nodes.Statement, mine: Sequence[tuple[str, nodes.ChoiceStatement]], turns: Sequence[Sequence[int]]
) -> str | None:
    """The lines of a loop over numbers in which each param has the value of its turn in a list; None for another loop,
    or one in which all turns are alike."""
    match loop:
        case nodes.ForStatement((nodes.Binding(word, nodes.Binary("..", nodes.Number(first))),)) if len({*turns}) > 1:
            start = _line(text, loop.span.start)
            own = text[start : _end(text, loop)]
            turn = word.text if first == "0" else f"{word.text} - {first}"
            for number, (_, choice) in reversed([*enumerate(mine)]):
                if not isinstance(choice, nodes.ParamStatement):
                    return None
                said = _let(choice, f"{[of[number] for of in turns]}[{turn}]")
                own = own[: choice.span.start - start] + said + own[choice.span.end - start :]
            return own
    return None


def _let(param: nodes.ParamStatement, value: object) -> str:
    """A value in place of a param, with a note on what was tried."""
    tried = "" if param.domain is None else f"  # of {param.domain.span.text}"
    return f"let {param.name.text} = {value}{tried}"


def can_be_unlike(script: nodes.Script, name: str) -> bool:
    """Whether turns of a choice may be written with unlike branches: the loop around it is one of the plan itself, over
    one list."""
    return any(
        isinstance(s, nodes.ForStatement)
        and len(s.bindings) == 1
        and any(isinstance(inner, nodes.ChoiceStatement) and nodes.name_of(inner) == name for inner in s.body)
        for s in script.statements
    )


def _for_all(branches: tuple[int, ...], turns: int) -> tuple[int, ...]:
    """The branch of each turn, where one stands for all."""
    return branches * turns if len(branches) == 1 else branches


Taken = tuple[nodes.ChoiceStatement, int, Callable[[int], str]]  # a choice, its number, and what others would change


def _resolved(text: str, statement: nodes.Statement, taken: Sequence[Taken], values: str | None) -> str:
    """The lines of a statement with the branches that are taken; with `values` its loop is over these."""
    start = _line(text, statement.span.start)
    own = text[start : _end(text, statement)]
    edits = [
        (_line(text, choice.span.start) - start, _end(text, choice) - start, _branch(text, choice, number, said))
        for choice, number, said in taken
    ]
    if values is not None:
        assert isinstance(statement, nodes.ForStatement)
        at = statement.bindings[0].values.span
        edits.append((at.start - start, at.end - start, values))
    for first, last, new in sorted(edits, reverse=True):
        own = own[:first] + new + own[last:]
    return own


def _branch(text: str, choice: nodes.ChoiceStatement, number: int, said: Callable[[int], str]) -> str:
    """The lines of one branch in place of the choice, or the number of a param; the others as comments."""
    margin = " " * (choice.span.start - _line(text, choice.span.start))
    match choice:
        case nodes.EitherStatement(branches):
            bodies = [dedent(text[_line(text, body[0].span.start) : _end(text, body[-1])]) for body in branches]
            lines = [bodies[number].rstrip()]
            for other, body in enumerate(bodies):
                if other != number:
                    first, *rest = body.rstrip().split("\n")
                    lines += [f"# not taken{said(other)}: {first}", *(f"#     {line}".rstrip() for line in rest)]
        case nodes.ParamStatement():
            lines = [_let(choice, number)]
        case _:
            assert_never(choice)
    return indent("\n".join(lines), margin)


def _these(loop: nodes.ForStatement, run: Sequence[int], model: ModelIndex | None) -> str:
    """The list of a loop's values of these turns: one path where numbers tell them apart, else one by one."""
    values = loop.bindings[0].values
    match values:
        case nodes.Call(function=nodes.NameExpression(text="each"), arguments=(nodes.Text(value=pattern),)):
            assert model is not None
            path = numbered_paths(model.paths, pattern, run)
            if path and match_paths(model.paths, path) == tuple(model.match(pattern)[turn] for turn in run):
                return f'each("{path}")'
        case nodes.Binary(operator="..", left=nodes.Number(text=first)):
            numbers = [int(first) + turn for turn in run]
            is_run = numbers == [*range(numbers[0], numbers[0] + len(numbers))]
            return f"{numbers[0]}..{numbers[-1] + 1}" if is_run else str(numbers)
    text = values.span.text
    whole = text if re.fullmatch(r"[\w.]+(\(.*\))?", text) else f"({text})"
    return f"[{', '.join(f'{whole}[{turn}]' for turn in run)}]"


def _line(text: str, at: int) -> int:
    """The start of the line of a place."""
    return text.rfind("\n", 0, at) + 1


def _end(text: str, statement: nodes.Statement) -> int:
    """The end of the last line of a statement."""
    last = max(
        node.span.end for node in nodes.walk(statement) if not any(isinstance(p, nodes.Node) for p in node.parts)
    )
    end = text.find("\n", last)
    return len(text) if end < 0 else end
