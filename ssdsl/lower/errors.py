"""Diagnostics of lowering: contradictions of layout, placement and order, and statements without effect."""

from collections.abc import Callable

from ssdsl.lang.suggest import either, listed
from ssdsl.model.graph import Operator
from ssdsl.plan.plan import Plan
from ssdsl.record import Record
from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.edits import TextEdit
from ssdsl.text.source import Span


def operator_text(kind: str, path: str, source: str) -> str:
    """An operator with its place in the model's code."""
    return f"`{kind}` in {f'module `{path}`' if path else 'the model'} ({source})"


def path_of(plan: Plan, operator: Operator) -> str:
    """The module of an operator as errors name it, with the parts that it is; empty for a whole one of the model."""
    record = plan.of(operator.name)
    return record.module(operator) if record.parts else operator.path


class UnevenWithOthers(Diagnostic):
    """A dimension is cut into parts of unequal sizes, or into parts that read windows, and by a second index as well.

    The parts of the two indices would not line up: communication between layouts needs parts of one size, or regions
    that depend on one index, or on axes of the mesh together. Beside equal parts, one index of a dimension may have
    sizes: `split model by batch into dp, m = [3, 1]` cuts each part of `dp` into 3 and 1, and `m = [6, 2], dp` says the
    same for the whole dimension. Sizes are not allowed where a part must be a contiguous run, as in a loss along its
    classes. A dimension that convolutions read by windows, such as the height of an image, may be cut by several axes
    of the mesh, or by one index in time alone: its parts run one after another, and read those of its neighbours. In
    causal attention a slice in time of the queries reads all keys before it, so another index cannot cut the keys; axes
    of the mesh can, in equal parts, of which those that cut keys alone cut the runs that the others leave. Write parts
    of one size in another order after the index that cuts equal parts: `into m = 4, way parts [[1], [0]]`.
    """

    code = "E0401"
    title = "`{dim}` has {parts} along `{index}` and is cut by `{other}` too"
    label = "{parts}"
    note = "{where}"
    dim: str
    index: str
    other: str
    path: str
    windows: bool
    in_time: str  # the index that is no axis, where axes could have windows or chunks together; else empty
    is_outer: bool  # whether `other` cuts the parts of `index`
    permuted: bool  # parts of one size, in another order
    apart: bool = False  # parts have chunks that do not touch
    run: int = 0  # the positions in a row that both would have to cut
    obstacle: str = ""  # the operator that does not allow unequal parts beside equal ones

    @property
    def where(self) -> str:
        return f"{self.obstacle} does not allow both" if self.obstacle else f"for instance in module `{self.path}`"

    @property
    def parts(self) -> str:
        if self.run:
            return f"parts that do not divide runs of {self.run} positions"
        kinds = {
            "parts that read windows": self.windows,
            "permuted parts": self.permuted,
            "separate chunks": self.apart,
        }
        return next((parts for parts, holds in kinds.items() if holds), "unequal parts")

    @property
    def change(self) -> str:
        alone = f"cut `{self.dim}` by it alone"
        if self.run:
            return f"give `{self.index}` a number of parts that divides {self.run}, or {alone}"
        if self.permuted and self.is_outer and not self.windows:
            return f"put `{self.other}` in front of `{self.index}`: `into {self.other} ..., {self.index} parts ...`"
        if self.in_time:
            return f"make `{self.in_time}` an axis of the mesh, {alone}, or cut another dimension by `{self.other}`"
        if self.windows:
            return f"{alone}, in as many parts as both have, or cut along another dimension by `{self.other}`"
        return f"give `{self.index}` a number of equal parts, or {alone}"


class PartsApart(Diagnostic):
    """A part has chunks that do not touch, where an operator needs one run of positions, or parts are not in order.

    `into cp parts [[0, 3], [1, 2]]` gives a device the first chunk and the last. Attention accepts such queries and
    keys, and so do operators that treat all positions alike. Those that need the start of their run, as a loss along
    its classes, are computed whole. But a convolution reads the neighbours of a run, and parts that run one after
    another in time must be runs, in causal attention in the order of their positions: each reads those before it.
    """

    code = "E0408"
    title = "{state}, but {why}"
    label = "chunks of `{index}`"
    note = "in module `{path}`: `{kind}` ({source})"
    help = "give each part chunks in a row, `[[0, 1], [2, 3]]`, or leave this operator out of the split"
    dim: str
    index: str
    why: str
    kind: str
    path: str
    source: str
    are_runs: bool  # in another order

    @property
    def state(self) -> str:
        if self.are_runs:
            return f"the parts of `{self.dim}` are in another order than its positions"
        return f"a part of `{self.dim}` has chunks that do not touch"


class UnevenOutside(Diagnostic):
    """Unequal parts lie outside another split in one axis of a tensor.

    A reshape has merged two dimensions into one axis, for instance batch and sequence. If the outer one has parts of
    unequal sizes, the place of the inner one's parts varies from part to part.
    """

    code = "E0406"
    title = "unequal parts along `{index}` lie outside another split in one axis"
    label = "unequal sizes"
    note = "a reshape makes one axis of the dimensions {axis}"
    help = "give `{index}` a number of equal parts, or do not split the inner dimension there"
    index: str
    axis: str


class CombinedInTime(Diagnostic):
    """An operator takes statistics over all of its parts, but they run one after another.

    Batch normalisation takes its statistics over the whole batch and over space. Split over devices (an index that is a
    mesh axis), the parts reduce their statistics. Split in time into micro-batches, each part would normalise by its
    own statistics, which is not what the single device computes. If you want statistics per micro-batch, ask for them
    in the model: `ssdsl.micro_batch_statistics(module, parts)`; then the single device uses them as well.
    """

    code = "E0402"
    title = "`{kind}` in module `{path}` cannot be split in time along `{dim}`"
    label = "index `{index}` is no axis of the mesh, so its parts run one after another"
    note = "`{kind}` computes statistics over all of `{dim}` at once ({source})"
    help = "split `{dim}` over a mesh axis instead, or leave this module out of the split\n{request}"
    kind: str
    path: str
    dim: str
    index: str
    source: str
    parts: int  # with statistics of their own, so that all cuts of the batch keep them whole; 0 if that does not help

    @property
    def request(self) -> str:
        if self.kind != "batch_norm" or not self.parts:
            return ""
        own = f"`ssdsl.micro_batch_statistics(module, {self.parts})`"
        return f"or let each part have its own statistics: {own}, or `statistics={self.parts}` of a shipped model"


class NeedsWhole(Record):
    """The cause of a cycle: an operator that needs all parts along an index in time at once.

    `sums`: the parts are addends of a sum; `split`: the operator itself is split by the index; `backward`: the parts
    read its result, whose gradient is the sum. With `beside`, its own part `part` needs only these parts. `outside` is
    an index that cuts the same dimension outside this one, so the positions of a part depend on it. `between`: parts
    also read what it makes, so all parts of what is in front of it come before any of what is behind. `others` are the
    parts of the index at the other end of the value, if it has another number there. `recut` is the change of a `split`
    with which it needs fewer parts, if there is one.
    """

    kind: str
    path: str
    source: str
    index: str
    parts: int
    sums: bool
    split: bool
    backward: bool = False
    beside: tuple[int, ...] = ()
    part: int = 0
    outside: str = ""
    between: bool = False
    others: int = 0
    recut: TextEdit | None = None

    @property
    def fact(self) -> str:
        needs = "needs other parts" if self.beside else "needs all parts"
        at_once = "" if self.beside else " at once"
        return f"`{self.kind}` {needs} along `{self.index}`{at_once}, and the `order` puts one of them after it"

    @property
    def reason(self) -> str:
        where = operator_text(self.kind, self.path, self.source)
        every = ", ".join(map(str, range(self.parts)))
        if self.others:
            ends = f"{self.others} parts at one end of a value and {self.parts} at the other"
            return f"`{self.index}` has {ends}: {where} waits for {self.index} = {every}"
        if self.backward:
            return f"all parts read what {where} makes: its backward waits for those of {self.index} = {every}"
        if self.beside:
            some = ", ".join(map(str, self.beside))
            return f"{where} reads windows: its part {self.part} waits for {self.index} = {some}"
        why = "reads a sum over them, in which it is not linear" if self.sums else "mixes them"
        if self.outside:
            why = f"is cut by `{self.outside}` outside `{self.index}`, unlike other operators"
        return f"{where} {why}: it waits for {self.index} = {every}"

    @property
    def keeps_order(self) -> bool:
        """Whether another `split` allows the `order`."""
        return bool(self.others or self.outside)

    @property
    def change(self) -> str:
        if self.others:
            few, many = sorted((self.others, self.parts))
            inner = f"; or `{self.index} = {few}` on both, and a further index inside of it on one"
            recut = self.recut or f"split both into as many parts, `{self.index} = {many}`"
            return f"{recut}{inner}"
        if self.beside:
            return "without the `order` each part runs as soon as the parts that it reads are there"
        if self.outside:
            first = f"cut by `{self.index}` first, `into {self.index} = {self.parts}, {self.outside}`"
            return f"{self.recut or first}: then all parts agree"
        if self.split:
            return f"or leave `{self.kind}` and what follows out of the split into `{self.index}`"
        if self.between:
            apart = "puts some parts of the operators after it before other parts of those before it"
            return f"the `order` {apart}: without it, each task runs as soon as it can"
        loss = f"train with a loss that is a sum over the parts, without this `{self.kind}`"
        return f"or run all forwards before the first backward, as `gpipe` does, or {loss}"


class PlacedOperator(Record):
    """An operator with its place in the model's code, its devices, and the statement that puts it there."""

    kind: str
    path: str
    source: str
    devices: str
    span: Span

    @classmethod
    def of(cls, plan: Plan, operator: Operator) -> "PlacedOperator":
        """An operator of a plan, as errors name it."""
        place = plan.of(operator.name).home
        return cls(operator.kind, path_of(plan, operator), operator.source, str(place), place.span)

    def __str__(self) -> str:
        return operator_text(self.kind, self.path, self.source)


class Back(Record):
    """The cause of a cycle: a value that goes back to an earlier stage. `own` is set if the maker, or else the reader,
    is an operator that a module calls itself: the path that selects it. `is_all`: its statement assigns nothing else.
    """

    value: str
    maker: PlacedOperator
    reader: PlacedOperator
    own: str | None
    is_of_maker: bool
    is_all: bool
    narrowed: TextEdit | None = None  # the statement that selects the operators, without these

    @property
    def fact(self) -> str:
        ends = f"from `{self.maker.devices}` to `{self.reader.devices}`"
        return f"the value `{self.value}` goes back {ends}, against the order of tasks"

    @property
    def reason(self) -> str:
        made, read = (
            f"{self.maker} on {self.maker.devices} makes it",
            f"{self.reader} on {self.reader.devices} reads it",
        )
        return f"{made}\n{read}\nother values go in the other direction, so the two stages wait for each other"

    @property
    def placed(self) -> PlacedOperator:
        """The operator that its module calls itself."""
        return self.maker if self.is_of_maker else self.reader

    @property
    def change(self) -> str:
        if self.own is None:
            return "assign these two operators to the same devices, or cut the model by `balance(model, S)`"
        placed = self.placed
        change = (
            f"leave out of the selection on `{placed.devices}` the operators that this module calls outside its "
            f'submodules: {self.narrowed or f"""append `- model["{self.own}"]`"""}'
        )
        if self.is_all:
            change = f"{TextEdit(placed.span, '')}: it assigns only what this module calls outside its submodules"
        then = "each of these operators then runs where its operands are made\nor cut the model by `balance(model, S)`"
        return f"{change}\n{then}"


class OrderCycle(Diagnostic):
    """The plan's `order` statements contradict each other or the data flow: some tasks wait for themselves.

    The help names the smallest change of one statement with which none does: each change is tried before it is named.

    If a value goes back from a stage to an earlier one, the cause is an `assign`: `model - first` also selects the
    operators that modules call themselves, such as the sum of two embeddings, and puts them on the last stage. The
    first stage then waits for the last, and the last for the first.

    Often the cause is the data flow: an operator of the model needs all micro-batches at once. The exponential of a
    mean loss, a product of two means, or a similarity of every example with every other one is not a sum of terms of
    single micro-batches. The gradient of each micro-batch then waits for the forward of all of them. An order that runs
    a backward before the last forward, as 1F1B does, is then impossible. Terms that are added to such a sum (a weight
    penalty) are no obstacle.
    """

    code = "E0403"
    title = "{fact}"
    label = "{role}"
    note = "{reason}\n{shown}"
    cycle: str
    places: tuple[Span, ...] = ()
    cause: NeedsWhole | Back | None = None
    nearest: Callable[[], tuple[TextEdit, ...]] = tuple  # with which no task waits; sought when shown
    calls: tuple[Span, ...] = ()  # of the functions with these statements

    @property
    def fact(self) -> str:
        return "the `order` statements form a dependency cycle" if self.cause is None else self.cause.fact

    @property
    def role(self) -> str:
        match self.cause:
            case Back(_, maker):
                return f"puts `{maker.kind}` on {maker.devices}"
        return "one of the statements on the cycle"

    @property
    def reason(self) -> str:
        return "" if self.cause is None else self.cause.reason

    @property
    def shown(self) -> str:
        return "" if isinstance(self.cause, Back) else self.cycle

    @property
    def change(self) -> str:
        if isinstance(self.cause, Back) or (self.cause is not None and self.cause.keeps_order):
            return self.cause.change
        changes = "\nor ".join(map(str, self.edits())) or "remove one of the `order` statements on the cycle"
        return changes if self.cause is None else f"{changes}\n{self.cause.change}"

    def edits(self) -> tuple[TextEdit, ...]:
        match self.cause:
            case Back(_, narrowed=narrowed) as back:
                return (TextEdit(back.placed.span, ""),) if back.is_all else () if narrowed is None else (narrowed,)
            case NeedsWhole(recut=recut) as whole if whole.keeps_order:
                return () if recut is None else (recut,)
        return self.nearest()

    def others(self) -> tuple[tuple[Span, str], ...]:
        match self.cause:
            case Back(_, _, reader):
                return tuple((span, f"puts `{reader.kind}` on {reader.devices}") for span in self.places)
        return (*((span, "and this one") for span in self.places), *((span, "called here") for span in self.calls))


class ShardConflict(Diagnostic):
    """The statement names no weight whose state can be cut along this axis.

    Either the plan already cuts these weights themselves along it, or they are on a mesh without this axis. If the
    statement also names weights whose state can be cut, the others stay as they are, without an error.
    """

    code = "E0404"
    title = "the {state} of `{weight}` cannot be cut into `{axis}`"
    label = "`{axis}` already splits the weight, or is no axis of its mesh"
    note = "{copied}"
    state: str
    weight: str
    axis: str
    candidates: tuple[str, ...]  # axes of several devices along which the weight is replicated
    left: tuple[str, ...]  # the other axes of the statement

    @property
    def copied(self) -> str:
        return f"the weight is replicated along {either(self.candidates)}" if self.candidates else ""

    @property
    def change(self) -> str:
        (edit,) = self.edits()
        return str(edit) if edit.text else f"{edit}: no axis of more than one device replicates the weight"

    @property
    def instead(self) -> tuple[str, ...]:
        assert self.span is not None
        over = self.left or self.candidates[:1]
        return (f"{self.span.text.rpartition(' into ')[0]} into {', '.join(over)}" if over else "",)


class StateApart(Diagnostic):
    """The plan cuts the gradients or the optimizer's state of a weight, but not into parts of the weight's parts.

    If a weight is stored in parts, its gradient and optimizer state have these parts; if gradients are in parts, the
    optimizer's state has these. So `.weights by row into dp` says all three. A second statement for `.grads` or
    `.optimizer` may cut them further, over more axes: weights over the devices of a node and the optimizer's state over
    all nodes, as in hybrid sharding and ZeRO++. It cannot leave an axis out.
    """

    code = "E0270"
    title = "the {state} of `{weight}` cannot be cut over {over} alone: its {held} are cut over {held_over}"
    label = "{state} over {over}"
    note = "state that is computed from the {held} has at least the parts of the {held}"
    help = "write `into {nested}`, or leave this `split` out"
    state: str
    weight: str
    axes: tuple[str, ...]
    held: str
    held_axes: tuple[str, ...]
    first: Span

    @property
    def over(self) -> str:
        return listed(self.axes)

    @property
    def held_over(self) -> str:
        return listed(self.held_axes)

    @property
    def nested(self) -> str:
        return ", ".join(dict.fromkeys((*self.held_axes, *self.axes)))

    @property
    def instead(self) -> tuple[str, ...]:
        return () if self.span is None else (f"{self.span.text.rpartition(' into ')[0]} into {self.nested}",)

    def others(self) -> tuple[tuple[Span, str], ...]:
        return ((self.first, f"{self.held} over {self.held_over}"),)


class StateLeftWhole(Diagnostic):
    """A statement cuts state over devices, but the state of some weights stays whole on each device.

    A weight that is not trained has no other state; it stays whole where the number of devices divides none of its
    axes. A trained weight that lives on several sets of devices with different axes stays whole too, because the parts
    of its gradient could not be summed one by one.
    """

    code = "E0272"
    severity = "warning"
    title = "{what} {stay} whole on every device"
    label = "{reason}"
    note = "namely {names}"
    state: str
    weights: tuple[str, ...]
    is_trained: bool

    @property
    def what(self) -> str:
        count = f"{len(self.weights)} of these weights"
        return count if self.state == "weights" else f"the {self.state} of {count}"

    @property
    def stay(self) -> str:
        is_one = len(self.weights) == 1 if self.state == "weights" else self.state == "optimizer"
        return "stays" if is_one else "stay"

    @property
    def names(self) -> str:
        return listed(self.weights, 4)

    @property
    def reason(self) -> str:
        if self.is_trained:
            return "they are on devices with different axes"
        return "the devices divide none of their axes" if self.state == "weights" else "they are not trained"

    @property
    def change(self) -> str:
        if self.is_trained:
            return "assign the operators that use them to devices with the same axes, or leave them out"
        if self.state == "weights":
            return "leave them out of the `split`, or choose a number of devices that divides one of their axes"
        return "leave them out of the `split`: they have no gradients"


class IdleDevices(Diagnostic):
    """A mesh has devices without any assigned operator: they take part in the run, and compute nothing."""

    code = "E0275"
    severity = "warning"
    title = "{count} of the devices of `{mesh}` run nothing"
    label = "no operators are assigned to `{example}`"
    help = "make the mesh smaller, or assign operators to all of it"
    mesh: str
    count: int
    example: str


class CutInVain(Diagnostic):
    """A split cuts operators that get their operands whole, and whose results are gathered at once because all that
    read them need them whole. It saves a little work without products, and costs communication in each forward."""

    code = "E0278"
    severity = "warning"
    title = "`{operator}` is cut along `{axis}` in vain: its inputs are whole, and its results are needed whole"
    label = "gathers {size} for each forward"
    help = "leave these operators out of the split, or split those around them too"
    operator: str
    axis: str
    gathers: int
    bytes: int

    @property
    def size(self) -> str:
        """The bytes that a device gathers, and how many tensors these are."""
        return f"{self.bytes:,} bytes" + (f" in {self.gathers} tensors" if self.gathers > 1 else "")


class BufferApart(Diagnostic):
    """A buffer that the forward changes is read or changed on two sets of devices.

    Such a buffer, for example the running mean of a batch norm or a moving average, is updated on the devices that
    compute its new value. A copy on other devices would keep the old one. `balance` keeps the operators that read or
    change it together, if that leaves enough stages.
    """

    code = "E0366"
    title = "buffer `{buffer}` changes in every step, and is used on {first.devices} and on {second.devices}"
    label = "puts {first} on {first.devices}"
    help = (
        "assign the operators that read it and those that change it to the same devices\n"
        "`balance` keeps them in one stage, if there are fewer stages"
    )
    buffer: str
    first: PlacedOperator
    second: PlacedOperator

    def others(self) -> tuple[tuple[Span, str], ...]:
        """The statement behind the second place."""
        return ((self.second.span, f"puts {self.second} on {self.second.devices}"),)
