"""Mistakes of `split`: of dimensions, of parts that do not divide them, and of indices that do not go together."""

from collections.abc import Iterable
from math import gcd, prod

from ssdsl.lang.suggest import counted, either, joined, listed, nearest, suggest
from ssdsl.model.graph import ROOT
from ssdsl.plan.errors.traced import Conflict, Traced
from ssdsl.plan.facts import NumberOrigin
from ssdsl.record import Record

MOST_CHOICES = 6
NEAR, FAR = 2, 8  # times the asked number of parts: up to which another is near it, and from which it is no choice
MOST_SIZES = 4  # sizes of parts that a help lists one by one
ALIKE = (  # other words for one dimension
    ("vocab", "classes", "labels", "num_labels", "num_classes"),
    ("ffn", "mlp", "intermediate", "intermediate_size", "d_ff", "hidden", "features"),
    ("hidden", "embed", "embedding", "d_model", "n_embd", "model_dim", "dim", "channels"),
    ("seq", "sequence", "tokens", "time", "length", "window", "height"),
)


def places(paths: tuple[str, ...], has: str) -> str:
    """`h.0.attn` and 11 more have `has`; modules go before the root."""
    paths = tuple(sorted(paths, key=lambda path: path == ROOT))
    more = f" and {len(paths) - 1} more have" if len(paths) > 1 else " has"
    return f"`{paths[0]}`{more} {has}"


class Division(Record):
    """One cut of a dimension into equal parts: its index, their number, and the parameter that gave the number, if one
    did.

    `is_axis` where the number is the size of a mesh axis, which the statement does not repeat. `along` are the sizes of
    the axes with the index's name, where the statement gives a number: only these can be right. `in_chunks` where the
    statement lists so many equal chunks, of which a part may have several.
    """

    index: str
    count: int
    origin: NumberOrigin | None
    is_axis: bool = False
    along: tuple[int, ...] = ()
    in_chunks: bool = False

    @property
    def is_set(self) -> bool:
        return self.origin is not None and self.origin.is_set

    def __str__(self) -> str:
        if self.in_chunks:
            return f"{self.count} chunks"
        return f"{self.index} = {self.count}{f', {self.origin}' if self.origin else ''}"


def choices_of(size: int, asked: int, numbers: Iterable[int]) -> list[int]:
    """The numbers of parts to name for one that does not divide: those that do and are nearest to it, the largest
    first. None if all of them are far more than were asked for, which takes other devices.

    >>> choices_of(12, 8, range(2, 12))
    [6, 4, 3, 2]
    >>> choices_of(50304, 7, range(2, 50304))  # not 131
    [16, 12, 8, 6, 4, 3]
    >>> choices_of(50257, 2, range(2, 50257))  # 29 x 1733
    []
    """
    dividing = [n for n in numbers if size % n == 0 and n <= FAR * asked]
    if not any(n <= NEAR * asked for n in dividing):
        return []
    nearest = sorted(dividing, key=lambda n: (max(n, asked) / min(n, asked), n))[:MOST_CHOICES]
    return sorted(nearest, reverse=True)


def unequal(size: int, count: int) -> str:
    """The sizes of so many parts of a dimension that they do not divide, as a plan writes them.

    >>> unequal(7, 2), unequal(50257, 64)
    ('[4, 3]', '[(50257 + k) // 64 for k in 0..64]')
    """
    if count > MOST_SIZES:
        return f"[({size} + k) // {count} for k in 0..{count}]"
    return str([(size + k) // count for k in reversed(range(count))])


class InnerDims(Record):
    """The dimensions inside of one that a statement splits, the outermost first, with their sizes; `given` are the
    operators that it splits, `by` is the operator that takes the dimensions apart, with its line."""

    given: str
    dims: tuple[tuple[str, int], ...]
    by: str = ""

    def lines(self, dim: str, size: int, cut: Division) -> str:
        """The statements that cut the dimension and those inside of it into as many parts; empty if there are none."""
        left, found = cut.count, list[tuple[str, int]]()
        for name, positions in ((dim, size), *self.dims):
            if (parts := gcd(left, positions)) > 1:
                found.append((name, parts))
            left //= parts
        if left > 1:
            return ""
        words = [f"{cut.index}{'' if n == 0 else f'_{n + 1}'} = {parts}" for n, (_, parts) in enumerate(found)]
        statements = zip((name for name, _ in found), words, strict=True)
        return joined([f"`split {self.given} by {name} into {word}`" for name, word in statements], "and")


class DoesNotDivide(Traced):
    """A dimension is cut into equal parts, so its size must be a multiple of their number.

    `split model by heads into tp` with 12 heads and `tp = 8` is impossible. If a dimension is cut several times, its
    size must be a multiple of the product: `split model by batch into dp, m = 4` with `dp = 2` needs a multiple of 8.
    Sizes may be given: `into m = [3, 5]`. If parts of the batch have their own statistics in batch norm, the batch can
    only be cut between these parts, so their number must be a multiple of all cuts of the batch together.
    """

    code = "E0203"
    title = "cannot split `{dim}` into {cut.count} equal parts"
    label = "{cut}"
    note = "{where}\n{what_it_is}\n{what_is_inside}"
    help = "{change}\n{or_inside}\n{or_pad}\n{or_leave}\n{or_more}"
    dim: str
    cut: Division
    taken: tuple[Division, ...]  # the cuts that the dimension has already, the outermost first, if all are equal ones
    whole: int  # the size before all cuts
    left: int  # the size that this one cuts
    paths: tuple[str, ...]
    has_others: bool  # whether the statement names operators that can be cut so
    statistics: int | None = None  # the parts of the batch with own statistics that would do, if the dimension is these
    inside: InnerDims | None = None  # dimensions that the rest of an axis could cut

    @property
    def what_is_inside(self) -> str:
        if self.inside is None:
            return ""
        words = [f"`{name}` = {size}" for name, size in self.inside.dims]
        axis = prod(size for _, size in self.inside.dims) * self.whole
        by = f": {self.inside.by} takes an axis of {axis} apart" if self.inside.by else ""
        return f"inside of it is {joined(words, 'and')}{by}"

    @property
    def or_inside(self) -> str:
        if self.inside is None:
            return ""
        lines, (name, size) = self.inside.lines(self.dim, self.left, self.cut), self.inside.dims[0]
        cuts = (*self.taken, self.cut)
        if size % prod(c.count for c in cuts) == 0:
            lines = f"`split {self.inside.given} by {name} into {', '.join(f'{c.index} = {c.count}' for c in cuts)}`"
        return f"or cut what is inside of it: {lines}" if lines else ""

    @property
    def what_it_is(self) -> str:
        if self.statistics is None:
            return ""
        return f"`{self.dim}` counts the {self.whole} parts of the batch that have batch norm statistics of their own"

    @property
    def or_more(self) -> str:
        if not self.statistics:
            return ""
        own = f"`ssdsl.micro_batch_statistics(module, {self.statistics})`"
        return f"or give more parts their own statistics: {own}, or `statistics={self.statistics}` of a shipped model"

    @property
    def or_pad(self) -> str:
        """Words for a model that parts divide, where no number of parts near the asked one divides this model."""
        if not self._gives_sizes:
            return ""
        padded = -(-self.left // self.cut.count) * self.cut.count
        return f"or make `{self.dim}` a multiple of {self.cut.count} in the model, such as {padded} by padding"

    @property
    def or_leave(self) -> str:
        if self.has_others or self._gives_sizes:
            return "or leave these whole: write `where possible` after the statement"
        return ""

    @property
    def where(self) -> str:
        if not self.taken:
            return places(self.paths, f"{self.dim} = {self.left}{' left to cut' if self.left != self.whole else ''}")
        before = joined([f"{t.index} = {t.count}{f' ({t.origin})' if t.is_set else ''}" for t in self.taken], "and")
        return f"{places(self.paths, f'{self.dim} = {self.whole}')}; after {before} each part has {self.left}"

    @property
    def change(self) -> str:
        """The parameter or the number of parts to set: what the user has set, else a parameter, else what the plan has
        written; of these, this cut's rather than an earlier one's."""
        blamed = sorted((self.cut, *self.taken), key=lambda cut: (not cut.is_set, cut.origin is None))
        for cut in blamed:
            if choices := self._choices(cut):
                if cut.in_chunks:
                    return f"list as many chunks as divide {self.left}: {joined(list(map(str, choices)), 'or')}"
                name = f"{cut.origin.param} = " if cut.origin else f"{cut.index} = "
                where = " in its mesh" if cut.is_axis and not cut.origin else ""
                return f"choose {self._goal(cut)}: {name}{joined(list(map(str, choices)), 'or')}{where}"
        if self._gives_sizes:
            return f"give the parts' sizes: `into {self.cut.index} = {unequal(self.left, self.cut.count)}`"
        if self.taken:
            return f"split `{self.dim}` less above, or leave `{self.cut.index}` out"
        return f"leave `{self.cut.index}` out: `{self.dim}` cannot be cut"

    @property
    def _gives_sizes(self) -> bool:
        """Whether sizes are the help: no number of equal parts is, and each part can have a position."""
        is_alone = not self.taken and not self.cut.in_chunks and self.statistics is None
        return is_alone and self.left >= self.cut.count and not self._choices(self.cut)

    def _goal(self, cut: Division) -> str:
        if cut.along:
            return f"the number of devices along `{cut.index}`"
        if not self.taken:
            return f"a divisor of {self.left * self._inside(cut)}"
        others = [f"{c.index} = {c.count}" for c in (*self.taken, self.cut) if c is not cut]
        return f"a number whose product with {joined(others, 'and')} divides {self.whole * self._inside(cut)}"

    def _inside(self, cut: Division) -> int:
        """The positions inside of each one, if the rest of an axis may cut these."""
        return prod(size for _, size in self.inside.dims) if cut.is_axis and self.inside is not None else 1

    def _choices(self, cut: Division) -> list[int]:
        """The numbers of parts that go with the other cuts (`choices_of`).

        Of batch = 8 with dp = 8 and m = 4: none for m, as 8 / 8 leaves 1; for dp the divisors of 8 / 4 = 2.
        """
        others = prod(c.count for c in (self.cut, *self.taken) if c is not cut)
        size, rest = (self.left * self._inside(cut), 0) if cut is self.cut else divmod(self.whole, others)
        least = 1 if self.taken else 2
        if rest:
            return []
        if cut.along:
            return [n for n in cut.along if size % n == 0][:MOST_CHOICES]
        return choices_of(size, cut.count, range(least, min(size, 4096) + 1))


class LeftWhole(Traced):
    """`where possible` left operators whole, because the number of parts does not divide their dimension.

    `split model by heads into tp where possible` with 12 heads and `tp = 8` computes all heads on each of the 8
    devices. `ssdsl check` reports how much work that repeats. Operators without the index can be cut along another
    dimension: `split model[tp = none] by head_dim into tp where possible`.
    """

    code = "E0381"
    severity = "warning"
    title = "`{dim}` = {size} is left whole: {why}"
    note = "{where}"
    help = "{change}\nor cut these along another dimension: {elsewhere}"
    dim: str
    size: int
    cut: Division
    paths: tuple[str, ...]
    pieces: int  # chunks of all parts, each part one if the statement has none
    total: int | None  # the sum of the sizes, if the statement has them

    @property
    def why(self) -> str:
        if self.total is not None:
            return f"the parts' sizes add up to {self.total}"
        return f"{self.pieces} {'parts' if self.pieces == self.cut.count else 'chunks'} do not divide it"

    @property
    def elsewhere(self) -> str:
        return f"`split model[{self.cut.index} = none] by ... into {self.cut.index} where possible`"

    @property
    def where(self) -> str:
        return f"{places(self.paths, f'{self.dim} = {self.size}')}; {self.cut}"

    @property
    def change(self) -> str:
        if self.total is not None:
            return f"to cut it, give sizes that add up to {self.size}, or a number of equal parts"
        choices = [*map(str, choices_of(self.size, self.pieces, range(2, min(self.size, 4096) + 1)))]
        if choices and self.pieces != self.cut.count:
            return f"to cut it, give as many chunks as divide {self.size}: {joined(choices, 'or')}"
        if not choices and self.pieces == self.cut.count <= self.size:
            return f"to cut it, give the parts' sizes: `into {self.cut.index} = {unequal(self.size, self.cut.count)}`"
        if not choices:
            return "nothing has to be changed: each device computes it whole"
        name = f"{self.cut.origin.param if self.cut.origin else self.cut.index} = "
        return f"to cut it, choose a divisor of {self.size}: {name}{joined(choices, 'or')}"


class WithoutRow(Traced):
    """ssdsl has no row for an operator, which says how it may be split. So each device computes all of it.

    That is always right, but repeats work and gathers what the operator reads. `ssdsl discover --model MODEL` runs the
    operator on small inputs, whole and in parts, and prints a row for the model's file. A row that cuts nothing says
    that this is how it should be.
    """

    code = "E0383"
    severity = "warning"
    title = "`{kind}` has no row, so each device computes all of it"
    label = "{index} splits {dim}"
    note = "{times} in {where}"
    help = "`ssdsl discover --model {model} {kind}` tries out how it may be split, and prints a row"
    kind: str
    index: str
    dim: str
    count: int
    paths: tuple[str, ...]
    model: str

    @property
    def where(self) -> str:
        return listed(self.paths, 2)

    @property
    def times(self) -> str:
        return counted(self.count, "call")


class NoSuchCondition(Traced):
    """`where possible` is the only condition of a `split`: it leaves out operators that cannot be cut so.

    Such operators do not have the dimension, or the number of parts does not divide it, or it cannot be split, or they
    have this index already, along another dimension.
    """

    code = "E0382"
    title = "`split` has no condition `{word}`"
    help = 'write `where possible`, or choose operators: `split model["h.*"] by ...`'
    word: str

    @property
    def instead(self) -> tuple[str, ...]:
        return ("possible",)


class OtherName(Traced):
    """A `split` leaves out operators that have the same axis of the model under another name.

    A convolution turns `rows` of its input into `height` of its result: one axis with two names, perhaps at two sizes.
    `split model by rows into sp` cuts the operators that call it `rows`, and each device computes all of the others.
    Cut these by the other name in a second statement, or give the input's axis that name.
    """

    code = "E0349"
    severity = "warning"
    title = "{operators} the axis `{dim}` {named}, so this statement does not cut {it}"
    note = "among them {example}"
    help = "cut them as well: `split ... by {other} into {index}`, or give the axis of the input this name"
    dim: str
    count: int
    words: tuple[str, ...]
    paths: tuple[str, ...]
    index: str

    @property
    def operators(self) -> str:
        return "1 operator calls" if self.count == 1 else f"{self.count} operators call"

    @property
    def it(self) -> str:
        return "it" if self.count == 1 else "them"

    @property
    def named(self) -> str:
        return either(self.words)

    @property
    def other(self) -> str:
        return self.words[0]

    @property
    def example(self) -> str:
        return listed(self.paths, 3)


class NoSuchDimension(Traced):
    """No selected operator has a dimension of this name: `split model by head into tp`.

    `ssdsl show PLAN --model gpt dims` lists the dimensions.
    """

    code = "E0204"
    title = "no operator selected here has a dimension `{dim}`"
    note = "{has}"
    dim: str
    known: tuple[str, ...]  # of the selected operators
    aliases: tuple[str, ...]  # named by `dim`
    theirs: tuple[str, ...] = ()  # names of axes that an input calls `dim`, behind one that calls them so
    may_lack: bool = True  # whether the statement may say that a model need not have it
    marked: tuple[str, ...] = ()  # names such as `seq.keys`, which tell two dimensions of one operator apart

    @property
    def has(self) -> str:
        return f"they have {listed(self.known, 12)}" if self.known else ""

    @property
    def called(self) -> tuple[str, ...]:
        """What the axis is called by operators behind the input that calls it so."""
        return tuple(name for name in self.theirs if name in self.known)

    @property
    def alike(self) -> tuple[str, ...]:
        """The dimensions that other words of the field call so."""
        base, _, number = self.dim.rpartition(".")
        before = base if number.isdigit() else self.dim  # a number told two apart that have one name
        marked = (name for name in self.marked if name.rpartition(".")[0] == base)
        return (*marked, *(name for name in alike(before) if name in self.known))

    @property
    def instead(self) -> tuple[str, ...]:
        return self.called or self.alike or nearest(self.dim, (*self.known, *self.aliases))

    @property
    def change(self) -> str:
        if self.called:
            return f"here it is {either(self.called)}"
        words = self.alike
        found = f"here it may be {either(words)}" if words else suggest(self.dim, (*self.known, *self.aliases))
        or_else = "; for models that may lack it, add `where possible`" if self.may_lack else ""
        return found or f"`ssdsl show PLAN --model MODEL dims` lists what there is{or_else}"


class Other(Record):
    """A dimension that a statement may have meant: `dim` of size `size` in `path`, which has no index of this name."""

    path: str
    dim: str
    size: int


def alike(dim: str) -> tuple[str, ...]:
    """The words that may stand for one dimension, this one first."""
    return tuple(dict.fromkeys((dim, *(word for words in ALIKE if dim in words for word in words))))


class Contradiction(Conflict):
    """Two statements give one operator's index different meanings.

    An index is added once: two splits into `tp` must cut the same dimension into as many parts. An analysis names the
    dimensions, and may name them otherwise than a paper: of three layers in a row, the widths between them are `ffn`
    and `hidden`. `ssdsl show PLAN dims` lists them with sizes, and `dim inner = model["h.*.rise"].hidden` gives one a
    name of its own.
    """

    code = "E0205"
    title = "`{operator}` already has an index `{name}`"
    label = "cuts `{dim}` = {size} into {count}"
    help = "{change}\n{or_other}"
    earlier = "cuts `{first_dim}` = {first_size} into {first_count}"
    operator: str
    name: str
    dim: str
    size: int
    count: int
    first_dim: str
    first_size: int
    first_count: int
    given: str  # what the statement splits
    asked: str  # the dimension that it names
    is_all: bool  # whether all operators that have the dimension have the index
    is_pair: bool  # whether one index may cut both dimensions alike, as queries and keys
    other: Other | None

    @property
    def change(self) -> str:
        if self.dim == self.first_dim or self.is_pair:
            same = (
                f"number of parts, `{self.name} = {self.first_count}`" if self.count != self.first_count else "chunks"
            )
            return f"give both the same {same}, or choose another index"
        if self.is_all:
            up = f"put this statement in front of the other, and `[{self.name} = none]` behind what that one splits"
            return f"choose another index, or {up}"
        some = f"`split {self.given}[{self.name} = none] by {self.asked} into {self.name}`"
        return f"choose another index, or leave out the operators that have it: {some}"

    @property
    def or_other(self) -> str:
        if self.other is None:
            return ""
        named = f'`dim inner = model["{self.other.path}"].{self.other.dim}`'
        then = f"`split {self.given} by inner into {self.name}`"
        return f"or, if the dimension of {self.other.size} is meant there, name it: {named}, and {then}"


class CannotSplit(Traced):
    """None of these operators can be cut along this dimension: for example, a layer norm needs the whole normalised
    axis.

    If a statement also names operators that can be cut, those are cut, and these are computed whole by each device,
    with the communication that this takes: `ssdsl check` lists them, and how much work that repeats.
    """

    code = "E0206"
    title = "cannot split a {kind} by `{dim}`: {reason}"
    note = "{where}"
    kind: str
    dim: str
    reason: str
    operator: str
    path: str
    source: str  # the line of the model
    count: int  # of operators like this
    rest: str  # the selection without them; empty if they are all

    @property
    def change(self) -> str:
        if not self.rest:
            return f"leave this `split` out, or select operators that can be cut by `{self.dim}`"
        return f"leave these operators out: `split {self.rest} by {self.dim} ...`"

    @property
    def where(self) -> str:
        more = f" and {counted(self.count - 1, 'more operator')}" if self.count > 1 else ""
        return f"`{self.operator}`{f' in `{self.path}`' if self.path else ''}, {self.source}{more}"
