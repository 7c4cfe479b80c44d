"""A row of the operator table: everything that ssdsl knows of one operator.

`docs/operators.md` explains the fields to users, who add rows of their own; `registry.py` finds a call's row.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from keyword import iskeyword
from typing import Final

from ssdsl.model.dims.signature import Signature, parse_signature
from ssdsl.model.graph import Operator
from ssdsl.model.memory.saved_tensors import Saved
from ssdsl.model.ops.reader import AxisOfPart, Reader, TypedCall
from ssdsl.record import Record

Rule = Callable[[TypedCall], Signature | None]
SavedRule = str | Callable[[Reader], Saved | None] | None
Text = str | Callable[[Mapping[str, str]], str]
Flops = Callable[[TypedCall], int]
Mean = Callable[[TypedCall], str]

MEASURED: Final = None  # a call saves what torch shows when it is captured
RUNTIME = "runtime"  # the module that every program imports functions from
MEAN = re.compile(r"|\w+ != -?\d+|\w+\.\d+( \w+\.\d+)*")
NAME = re.compile(r"[\w.]+::\w+(\.\w+)?")


def regroup(call: TypedCall) -> Signature | None:
    """Marks a reshape in place of a rule: it keeps all elements in their order and changes the axes.

    The analysis then matches the factors of the axes before and after.
    """
    raise AssertionError(f"`{call.call.kind}` keeps its factors and needs no signature")


def resolved(call: TypedCall) -> Signature | None:
    """Marks a row that was read from a graph's file: its calls already have their dimensions."""
    raise AssertionError(f"`{call.call.kind}` has its dimensions")


class Collective(Record):
    """A collective in the kernel of a part, among the parts along the split axis.

    `numbers`: the elements that it sends for each element of the dimensions of the kernel's first tensor that are
    neither fixed nor combined: 2, if [tokens, vocabulary] logits send a sum and a target for each token. What is sent
    `lacks` some of these dimensions and `has` others: a key has no `heads_per_group`, and lies along the keys, not the
    queries. An element has the bytes of that tensor's, but at least `width`: 4, if a kernel adds up bfloat16 numbers in
    float32. `overlaps`: the kernel computes meanwhile.
    """

    numbers: int
    kind: str = "all_reduce"
    width: int = 1
    overlaps: bool = False
    lacks: tuple[int, ...] = ()
    has: tuple[int, ...] = ()


Collectives = tuple[Collective, ...] | Callable[[Operator, int], tuple[Collective, ...]]  # for a number of parts


class PartKernel(Record):
    """The kernel of a part that cannot be a plain call on slices: split along a dimension that vanishes, or is `*`.

    `axis` names the split: a parameter of the operator, and the axis of its tensor, several axes, the argument that
    chooses one or more axes (`"dim"`), or None for any of its axes. `call` is the Python of the call, in which a
    parameter of the operator in braces is its argument, and

    - `{start}` is the first index of the part along the axis, `{part}` the number of parts before it,
    - `{size}` the length of the whole axis, `{places}` a list of (start, size) for axes that may be cut at once,
    - `{regions}` the runs (start, end) of the axis that each part has,
    - `{count}` the number of elements of all parts along the combined dimensions,
    - `{group}` the process group of the parts, which may be of unequal sizes,
    - `{queries}` the runs of this part's queries, where the parts of the keys do not say them, and `{merging}` the
      process group over which the results of several rings are merged.

    A result may carry the axis: it is then the part's own. `merged` names a second axis in the same way, if the group's
    parts are those of it: for example of points that are reduced into positions along `axis`. Either may be cut, or
    both; without parts of `merged` the group is None. `forward` and `backward` are its collectives, or a function that
    gives them for an operator and a number of parts; `saved` has the tensors that it saves for backward. What is not
    given is observed when a call is captured, for functions of the runtime; a row for another function gives all of
    them, as `()` if there is none.
    """

    axis: tuple[str, AxisOfPart]
    call: str
    forward: Collectives | None = MEASURED
    backward: Collectives | None = MEASURED
    saved: SavedRule = MEASURED
    merged: tuple[str, AxisOfPart] | None = None

    @property
    def axes(self) -> tuple[tuple[str, AxisOfPart], ...]:
        """The axes along which it runs: its own, and the one whose parts the group merges, if that is another."""
        return (self.axis,) if self.merged is None else (self.axis, self.merged)

    def tells(self, word: str) -> bool:
        """Whether the call has this word in braces: start, part, size, places, regions, count, group, queries or
        merging."""
        return f"{{{word}}}" in self.call

    @property
    def is_measured(self) -> bool:
        """Whether it has to be observed what the kernel saves or communicates."""
        return MEASURED in (self.forward, self.backward, self.saved)

    @property
    def is_placed(self) -> bool:
        """Whether the call gets the position of its part, which must then be a run of the axis."""
        return any(map(self.tells, ("start", "part", "places")))

    @property
    def function(self) -> str:
        """The name of the function that it calls: one of the runtime, or `module.function`."""
        return self.call.partition("(")[0]


def imported_name(module: str) -> str:
    """The name of a module in a program: its own, unless that is no name of Python's.

    >>> imported_name("nets.losses"), imported_name("40_losses")
    ('nets.losses', '_40_losses')
    """
    if all(word.isidentifier() and not iskeyword(word) for word in module.split(".")):
        return module
    return re.sub(r"\W|^(?=\d)", "_", module)


def call_of(function: str, words: str) -> str:
    """The text of a call: words that name parameters stand in braces, others, such as numbers, as they are. Those
    behind a bar are given by name.

    >>> call_of("max_pool_part", "2 self | stride parts")
    'max_pool_part(2, {self}, stride={stride}, parts={parts})'
    """
    by_place, _, by_name = (part.split() for part in words.partition("|"))
    given = (f"{{{word}}}" if word.isidentifier() and not iskeyword(word) else word for word in by_place)
    named = (word if "=" in word else f"{word}={{{word}}}" for word in by_name)
    return f"{function}({', '.join((*given, *named))})"


class Op(Record):
    """A row of one operator, by its full name: `aten::max`, or `aten::max.dim` for one overload of it.

    - `dims`: the axes that are the same dimension: a signature, or a function that returns one for a call.
    - `linear_in`: sets of parameters, each as words; the operator is linear in those of a set together. An addition has
      one set, `self other`; a product has two, `self` and `other`. Partial sums go through it.
    - `kernel`: runs in place of the operator on parts that depend on each other.
    - `ring`: runs in place of `kernel` where one index cuts a combined dimension and the one that it is beside.
    - `windows`: computes a part of windowed dimensions: a call of the runtime as in `kernel`, with `{parts}`.
    - `groups`: a parameter that is a number of groups, and the axis of the result that has them; a part has those of
      its part of the axis.
    - `flops`: of a forward; by default one operation for each element of the results, or two for each multiply-add of a
      `contraction`.
    - `factors`: the number of operands that a contraction multiplies: the first ones that are not added; None if it
      multiplies all. Backward has a product for each of them (`model/products.py`), and takes `backward_factor` times
      as long as these, because its kernel computes something again.
    - `saved`: tensors that autograd keeps for backward; by default torch is asked. `fused`: those that a GPU's fused
      kernel keeps.
    - `fresh`: the results are new tensors that autograd does not keep, so that a collective may change them in place.
    - `chained`: two operators in one call; their backward makes a gradient between them as large as the first operand.
    - `contraction`: a sum of products; `projects`: one that applies weights to an activation.
    - `regroups`: only moves elements; `stops_gradient`: its results have no gradient.
    - `compiles`: torch.compile can take it, as no size and no branch in it depends on numbers.
    - `ragged`: whether its results have as many rows as the data says; by default they have if an operand has.
    - `mean`: the rows over which a `torch.autograd.Function` is a mean, so that it becomes a sum (`rewrite/means.py`):
      axes of tensors, `x.0 x.1`, or labels that count, `labels != -100`; or a function of the call, "" for no mean.
    - `instead`: what a model may call in its place, if nothing splits the operator.
    - `text`: the call in a program, by default `aten.relu.default(...)`: `F.linear` calls a function, `.sum` a method,
      `+` stands between two operands, and braces hold arguments by their parameters.
    - `module`: the Python module that defines the operator, which a program imports.
    - `unknown`: it stands for an operator without a row, all of which is computed on each device.

    Raises ValueError for a row that cannot be right.
    """

    name: str
    dims: str | Rule
    linear_in: tuple[str, ...] = ()
    kernel: PartKernel | None = None
    ring: PartKernel | None = None
    windows: str = ""
    groups: tuple[str, int] | None = None
    flops: Flops | None = None
    factors: int | None = 2
    backward_factor: float = 1.0
    saved: SavedRule = MEASURED
    fused: SavedRule | None = None
    fresh: bool = False
    chained: bool = False
    contraction: bool = False
    projects: bool = False
    regroups: bool = False
    stops_gradient: bool = False
    compiles: bool = True
    ragged: bool | None = None
    instead: str = ""
    text: Text | None = None
    module: str = ""
    mean: str | Mean = ""
    unknown: bool = False

    def __post_init__(self) -> None:
        if problem := next(self._problems(), None):
            raise ValueError(f"the row of `{self.name}`: {problem}")

    def _problems(self) -> Iterator[str]:
        if not NAME.fullmatch(self.name):
            yield "give its full name, as torch says it: `mylib::scan`, or `mylib::scan.out` for one overload"
        if not (self.name.startswith(("aten::", "ssdsl::")) or self.module):
            yield "`module` names no Python module that defines the operator; programs have to import it"
        if isinstance(self.dims, str):
            yield from self._unread_signature(self.dims)
        if isinstance(self.mean, str) and not MEAN.fullmatch(self.mean):
            yield "`mean` names axes of tensors, such as `x.0 x.1`, or the labels that count: `labels != -100`"
        given: object = self.linear_in
        if not isinstance(given, tuple):
            yield '`linear_in` is a tuple of texts, such as ("self",)'
        for kernel in (k for k in (self.kernel, self.ring) if k is not None):
            yield from self._problems_of_kernel(kernel)

    def _unread_signature(self, text: str) -> Iterator[str]:
        try:
            letters = parse_signature(text).letters()
        except ValueError as error:
            yield str(error)
            return
        combined = [x.name for x in letters.values() if x.combined]
        inputs = {x.name for p in parse_signature(text).inputs for axis in p.axes for x in axis or ()}
        for letter in (x for x in letters.values() if x.name not in inputs and not x.fixed):
            yield f"no input has the dimension `{letter.name}` of a result; mark it as whole: `{letter.name}!`"
        if combined and self.kernel is None:
            yield f"`{combined[0]}*` needs a `kernel` that combines the parts"
        if combined and self.kernel is not None and self.kernel.forward == ():
            yield f"the parts of `{combined[0]}*` have to be combined: `kernel.forward` names no collective"

    def _problems_of_kernel(self, kernel: PartKernel) -> Iterator[str]:
        if not re.fullmatch(r"[\w.]+\(.*\)", kernel.call, re.DOTALL):
            yield f"`kernel.call` is no call of a function: {kernel.call}"
        if "." in kernel.function and not kernel.function.startswith(f"{self.module}."):
            yield f"`{kernel.function}` is not in `{self.module or RUNTIME}`, the module that programs import"
        if "." in kernel.function and kernel.is_measured:
            yield "`kernel` says what it communicates and saves: give `forward`, `backward` and `saved`"
        if (kernel.forward or kernel.backward) and "{group}" not in kernel.call:
            yield "`kernel.call` hands over no {group}, although the kernel has collectives"
        for word, axis in (("axis", kernel.axis), *((("merged", kernel.merged),) if kernel.merged is not None else ())):
            kinds = [type(x) for x in axis] if isinstance(axis, Sequence) else []
            if kinds not in ([str, int], [str, str], [str, tuple], [str, type(None)]):
                yield f'`kernel.{word}` is a parameter and an axis, as ("self", 1), or its argument: ("self", "dim")'
