"""A sketch: a plan with open params, and the numbers of each that a search tries."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ssdsl.cluster.cluster import Cluster
from ssdsl.lang import nodes
from ssdsl.lang.assets import library_files
from ssdsl.lang.parse import parse
from ssdsl.plan.declarations import params
from ssdsl.plan.errors.names import UnknownParam
from ssdsl.plan.facts import Facts
from ssdsl.plan.interpret import context_without_errors
from ssdsl.plan.model_index import ModelIndex
from ssdsl.plan.statements.param import names_in
from ssdsl.record import Record, replace
from ssdsl.sketch.used_files import open_in_used_files
from ssdsl.text.diagnostic import Diagnostic, PlanError
from ssdsl.text.source import Source

# reasons that `OpenParam.why` gives
LISTED, ASKED, BRANCHES = "listed in the plan", "as you ask", "for all turns of a loop"
Values = dict[str, int]
Meshes = tuple[tuple[str | int, ...], ...]  # the width of each axis of each mesh: a number or a param's name


class OpenParam(Record):
    """A param that a search may set: its default, the numbers that are tried, and why it is open.

    If the numbers depend on earlier params (`varies`), `tried` has those at the default setting.
    """

    name: str
    default: int
    tried: tuple[int, ...]
    why: str
    varies: bool = False


class Sketch(Record):
    """A plan's text with its open params. `fixed` has the other params: those that the user set, and those at their
    default.

    `meshes` is None if a width is more than a number or a param: then the number of devices of a setting is known
    only after the plan has been read. `files` are those that the plan uses, in its folder or below; `elsewhere` warns
    of what they leave open.
    """

    source: Source
    script: nodes.Script
    folder: Path | None  # of the plan, where `use "file.ssp"` looks; None: the working directory
    open: tuple[OpenParam, ...]
    fixed: Mapping[str, int]
    set_by_user: frozenset[str]  # these params of `fixed`
    meshes: Meshes | None
    elsewhere: tuple[Diagnostic, ...] = ()
    files: tuple[Path, ...] = ()

    @property
    def name(self) -> str:
        """`megatron` of `examples/megatron.ssp`."""
        return Path(self.source.name).stem

    @property
    def file(self) -> str:
        """The file's name as it was given. Plans with the same `name` differ in it; `answered` keeps it."""
        return self.source.name

    @property
    def default(self) -> Values:
        """The plan's own values of the open params."""
        return {p.name: p.default for p in self.open}

    def settings(self, devices: range) -> Iterator[Values]:
        """All combinations of the open params' numbers that take a number of devices in `devices`."""
        yield from self._settings(self.open, {}, devices)

    def settings_with_devices(self, devices: range) -> Iterator[tuple[Values, int]]:
        """Yields each setting with the number of devices that it takes; nothing if the text does not tell that
        number."""
        for values in self.settings(devices):
            count, is_exact = self._devices(values)
            if is_exact:
                yield values, count

    def overrides(self, values: Mapping[str, int]) -> Values:
        """The params for the compiler: these values, and those that the user set."""
        return {**{name: value for name, value in self.fixed.items() if name in self.set_by_user}, **values}

    def answered(self, text: str, values: Mapping[str, int]) -> "Sketch":
        """The sketch with another text, which fits only these values of its params: they are no longer open."""
        source = Source(self.source.name, text)
        script = parse(source)
        known = {*script.numbers}
        fixed = {name: value for name, value in {**self.fixed, **values}.items() if name in known}
        return replace(self, source=source, script=script, open=(), fixed=fixed, set_by_user=frozenset(fixed))

    def _settings(self, left: Sequence[OpenParam], values: Values, devices: range) -> Iterator[Values]:
        least, is_exact = self._devices(values)
        if least > devices[-1] or (is_exact and least not in devices):
            return
        if not left:
            yield values
            return
        for value in self._listed(left[0], values) if left[0].varies else left[0].tried:
            yield from self._settings(left[1:], {**values, left[0].name: value}, devices)

    def _listed(self, param: OpenParam, values: Values) -> Sequence[int]:
        """The numbers of a param whose list depends on earlier ones. Where a formula in it has no value, as `4 // E`
        with E = 0, the default: reading the plan refuses this setting, with the reason."""
        try:
            known = params(self.script, {**self.default, **self.overrides(values)})
        except PlanError:
            return (param.default,)
        return next(p.domain for p in known if p.name == param.name)

    def _devices(self, values: Values) -> tuple[int, bool]:
        """The least number of devices that a partial setting takes, and whether that is the exact number."""
        if self.meshes is None:
            return 0, False
        known = {**self.fixed, **values}
        widths = [[w if isinstance(w, int) else known.get(w, 0) for w in mesh] for mesh in self.meshes]
        return sum(math.prod(w or 1 for w in mesh) for mesh in widths), all(w for mesh in widths for w in mesh)


def sketch_of(
    source: Source,
    folder: Path | None,
    model: ModelIndex,
    devices: range,
    asked: Mapping[str, Sequence[int]] | None = None,
) -> Sketch:
    """The sketch of a plan, for a model on so many devices. `asked` has numbers that the user sets: one number is the
    param's value; several are tried, the first is the default. Names that are no params of this plan are ignored.

    Open params are those with `in`, with the numbers listed; those that `widths` divides among stages, with the numbers
    of devices; others in an axis's width, with the divisors of the number of devices; and those that are a number of
    parts, with the divisors of the dimensions that they cut. Raises PlanError if the text does not parse, or if a param
    is wrong with all params that the user does not set at their defaults.
    """
    script = parse(source)
    known = {*script.numbers}
    asked = {name: numbers for name, numbers in (asked or {}).items() if name in known}
    chosen = {name: numbers[0] for name, numbers in asked.items()}
    params(script, chosen)  # a wrong one is no fact, and would be taken for one that is not open
    context = context_without_errors(script, model, chosen, folder)
    facts = context.facts
    # once more with all other params at 1: at its default a split may not divide, and its dimension would be missed
    at_one = context_without_errors(script, model, {**dict.fromkeys(facts.params, 1), **chosen}, folder)
    sizes = {size for ctx in (context, at_one) for size in _cut_sizes(ctx.facts, ctx.model)}
    axes = _axes(script) | {e.text: None for e in _divided(script)}
    free: dict[str, OpenParam] = {}
    for s in script.statements:
        if isinstance(s, nodes.ParamStatement) and (name := s.name.text) in facts.params:
            tried, why = _tried(facts, sizes, axes, name, devices, asked.get(name, ()))
            varies = why == LISTED and s.domain is not None and not free.keys().isdisjoint(_names(s.domain))
            value = chosen.get(name, facts.params[name])
            if why == LISTED and value not in tried:  # the list follows a param that the user has set
                value = tried[0]
            tried = tuple(dict.fromkeys((value, *tried)))
            if len(tried) > 1 or varies or value != facts.params[name]:
                free[name] = OpenParam(name, value, tried, why, varies)
    for name, choice in facts.choices.items():
        tried = tuple(asked.get(name, dict.fromkeys((choice.own, *choice.numbers))))
        if len(tried) > 1:
            free[name] = OpenParam(name, tried[0], tried, ASKED if name in asked else BRANCHES)
    fixed = {**facts.params, **chosen}
    fixed = {name: value for name, value in fixed.items() if name not in free}
    set_by_user = frozenset(chosen.keys() - free.keys())
    meshes, elsewhere = _meshes(script, facts, free), open_in_used_files(script, folder)
    files = tuple(path for path, _ in context.libraries if path not in library_files())
    return Sketch(source, script, folder, tuple(free.values()), fixed, set_by_user, meshes, elsewhere, files)


def unknown_params(asked: Mapping[str, Sequence[int]], scripts: Iterable[nodes.Script]) -> list[Diagnostic]:
    """The mistakes of params that the user sets and no plan has. It is enough that one of several plans has a param."""
    known = tuple(sorted({name for script in scripts for name in script.numbers}))
    return [UnknownParam(None, name, numbers[0], known) for name, numbers in asked.items() if name not in known]


def wanted_devices(first: int, last: int, cluster: Cluster | None) -> range:
    """The numbers of devices that a search may use, as a range. Raises ValueError for an empty range, or for more
    devices than the cluster has."""
    if not 1 <= first <= last:
        raise ValueError(f"{first} to {last} are no numbers of devices")
    if cluster is not None and last > cluster.size and not cluster.shares_cores:
        raise ValueError(f"{cluster.name} has {cluster.size} devices, not {last}")
    return range(first, last + 1)


def _tried(
    facts: Facts,
    sizes: set[tuple[int, str]],
    axes: Mapping[str, str | None],
    name: str,
    devices: range,
    asked: Sequence[int],
) -> tuple[Sequence[int], str]:
    """The numbers of a param that a search tries, and the reason why it is open; no numbers if it is not open."""
    if asked:
        return asked, ASKED
    if facts.domains[name]:
        return facts.domains[name], LISTED
    if axis := axes.get(name):
        return _widths(devices), f"the width of {axis}"
    if name in axes:
        return list({facts.params[name]: 0} | dict.fromkeys(devices)), "the number of devices of all stages"
    if cut := {size for size, param in sizes if param == name}:
        return _divisors(math.gcd(*cut)), "a number of parts"
    return (), ""


def _widths(devices: range) -> list[int]:
    """The widths to try: the divisors of the number of devices, or all numbers if several numbers of devices are asked
    for."""
    if len(devices) == 1:
        return _divisors(devices[0])
    return list(range(1, devices[-1] + 1))


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _cut_sizes(facts: Facts, model: ModelIndex) -> Iterator[tuple[int, str]]:
    """The sizes of dimensions that are cut into as many parts as a param says, each with the param's name."""
    seen = set()
    for name, record in facts.operators.items():
        for index in record.indices:
            origin = facts.cut_origins.get(index.span)
            if origin is not None:
                seen.add((model.operators[name].dims[index.dim].size, origin.param))
    yield from seen


def _axes(script: nodes.Script) -> dict[str, str | None]:
    """For each name that an axis's width depends on, also through a `let`, the name of that axis. Of several, the first
    whose width is just the name counts, else the first."""
    lets = {s.name.text: _names(s.value) for s in script.statements if isinstance(s, nodes.LetStatement)}
    found: dict[str, str | None] = {}
    axes = [axis for s in nodes.walk(script) if isinstance(s, nodes.MeshStatement) for axis in s.axes]
    for axis in sorted(axes, key=lambda axis: not isinstance(axis.value, nodes.NameExpression)):
        left = [*_names(axis.value)]
        while left:
            if (name := left.pop()) not in found:
                found[name] = axis.name.text
                left += lets.get(name, ())
    return found


def _divided(script: nodes.Script) -> Iterator[nodes.NameExpression]:
    """The names of the numbers of devices that `widths` divides among stages."""
    for node in nodes.walk(script):
        match node:
            case nodes.Call(
                function=nodes.NameExpression(text="widths"), arguments=(nodes.NameExpression() as name, *_)
            ):
                yield name
            case _:
                pass


def _meshes(script: nodes.Script, facts: Facts, free: Mapping[str, object]) -> Meshes | None:
    """The widths of all axes, as numbers and names of open params; None if a width is more than that."""
    written = [s for s in script.statements if isinstance(s, nodes.MeshStatement)]
    everywhere = sum(isinstance(node, nodes.MeshStatement) for node in nodes.walk(script))
    if not len(written) == everywhere == len(facts.meshes):
        return None  # some meshes are in a loop or a condition, or are wrong at the defaults
    found = []
    for s in written:
        sizes = dict(facts.meshes[s.name.text].axes)
        free_here = [free.keys() & _names(axis.value) for axis in s.axes]
        origins = [facts.axis_origins.get((s.name.text, axis.name.text)) for axis in s.axes]
        if any(names and o is None for names, o in zip(free_here, origins, strict=True)):
            return None
        pairs = zip(origins, s.axes, strict=True)
        found.append(tuple(o.param if o and o.param in free else sizes[axis.name.text] for o, axis in pairs))
    return tuple(found)


def _names(e: nodes.Expr) -> set[str]:
    return {name.text for name in names_in(e)}
