"""Mistakes in the parts of a `split`: how many there are, how large, and of which mesh axis."""

from fractions import Fraction

from ssdsl.lang.suggest import counted, either, joined, listed, nearest
from ssdsl.plan.errors.split import places
from ssdsl.plan.errors.traced import Conflict, Traced
from ssdsl.record import Record
from ssdsl.text.diagnostic import Diagnostic


class Homeless(Record):
    """An operator on a mesh without the axis that is asked for, or on none."""

    module: str
    mesh: str | None


class UnknownCount(Traced):
    """The number of parts is missing. An index without one takes it from the mesh axis of the same name.

    No mesh above the statement has such an axis, or several meshes have it with different sizes, and not all of the
    operators are assigned to one of these. An index that is no axis of the operators' mesh is an index in time: its
    parts run one after another on each device.
    """

    code = "E0207"
    title = "the number of parts of `{name}` is unknown"
    label = "{reason}"
    note = "{where}"
    name: str
    meshes: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]  # those above, with their axes
    without: Homeless | None = None  # an operator that is not on one of those that have the axis

    @property
    def may_follow(self) -> bool:
        """Whether a place that a statement below gives may say the number."""
        return self.without is not None and self.without.mesh is None

    @property
    def where(self) -> str:
        match self.without:
            case Homeless(module, None):
                return f"`{module}` is assigned to none of these meshes"
            case Homeless(module, mesh):
                return f"`{module}` is on `{mesh}`, which has no axis `{self.name}`"
            case None:
                return ""

    @property
    def sizes(self) -> dict[int, str]:
        """The numbers of devices along the axis, each with the meshes that have it so."""
        found: dict[int, list[str]] = {}
        for mesh, axes in self.meshes:
            if self.name in dict(axes):
                found.setdefault(dict(axes)[self.name], []).append(mesh)
        return {size: listed(meshes, 3) for size, meshes in found.items()}

    @property
    def reason(self) -> str:
        each = joined([f"{size} in {meshes}" for size, meshes in self.sizes.items()], "and")
        return f"devices along it: {each}" if each else "no mesh above has this axis"

    @property
    def change(self) -> str:
        if each := joined([f"`{self.name} = {size}` for {meshes}" for size, meshes in self.sizes.items()], "or"):
            return f"write {each}, or {self._other}; each operator has the number of its own mesh"
        if self.near:
            return f"did you mean {either(self.near)}?"
        mesh, axes = self.meshes[0] if self.meshes else ("gpus", ())
        written = ", ".join(f"{axis} = {size}" for axis, size in (*axes, (self.name, 2)))
        in_time = f"or, for parts that run one after another on a device, say how many: `{self.name} = 2`"
        return f"to split over devices, declare the axis above: `mesh {mesh}({written})`\n{in_time}"

    @property
    def instead(self) -> tuple[str, ...]:
        if self.sizes:
            return tuple(f"{self.name} = {size}" for size in self.sizes)
        return self.near

    @property
    def near(self) -> tuple[str, ...]:
        """The axes that the name is like; of a short one those with one other letter."""
        axes = tuple(dict.fromkeys(axis for _, own in self.meshes for axis, _ in own))
        alike = (axis for axis in axes if len(axis) == len(self.name))
        one = (axis for axis in alike if sum(a != b for a, b in zip(axis, self.name, strict=True)) == 1)
        return nearest(self.name, axes) or tuple(one)

    @property
    def _other(self) -> str:
        """What gives each operator a mesh with the axis."""
        mesh = self.without.mesh if self.without is not None else None
        if mesh is None:
            return "assign all of these operators"
        axes = ", ".join(f"{axis} = {size}" for axis, size in (*dict(self.meshes)[mesh], (self.name, 1)))
        return f"give that mesh the axis, too, `mesh {mesh}({axes})`"


class NearAxis(Traced):
    """An index in time has nearly the name of a mesh axis that its operators do not use: `tpp` for `tp`.

    An index that is no axis of the operators' mesh is one in time: its parts run one after another on each device.
    With a slip in the name of the axis, the devices along the axis would all do the same work. With as many parts as
    the axis has devices, a complete plan is refused (E0292).
    """

    code = "E0280"
    severity = "warning"
    title = "`{name}` is no axis of `{mesh}`: its {count} parts run one after another"
    label = "in time"
    note = "no operator of this statement is split over the {size} devices of `{axis}`"
    help = "did you mean `{axis}`? If its parts are meant to run one after another, choose a name unlike an axis"
    name: str
    count: int
    mesh: str
    axis: str
    size: int

    @property
    def instead(self) -> tuple[str, ...]:
        return (self.axis,)


class MisspeltAxis(Traced):
    """An index in time has nearly the name of a mesh axis, and as many parts as the axis has devices: `ddp = 2` for
    `dp`.

    No operator of the statement is split over the axis, so its devices would all do the same work. The name is taken
    for a slip (E0280 warns of one with another number of parts).
    """

    code = "E0292"
    title = "`{name}` is no axis of `{mesh}`, and `{axis}` is not used"
    label = "would run one after another"
    note = "no operator of this statement is split over the {size} devices of `{axis}`"
    help = "did you mean `{axis}`? If the parts are meant to run one after another, choose a name unlike an axis"
    name: str
    mesh: str
    axis: str
    size: int

    @property
    def instead(self) -> tuple[str, ...]:
        return (self.axis,)


class CountMismatch(Conflict):
    """An index with the name of a mesh axis must have as many parts as the axis has devices."""

    code = "E0208"
    title = "`{name}` has {parts}, and the axis `{name}` of `{mesh}` has {devices}"
    label = "{parts}"
    note = "for instance `{operator}`"
    help = "write `into {name}` alone: its parts are those of the axis; or list {size} parts, or rename the index"
    earlier = "{devices} along `{name}`"
    name: str
    count: int
    mesh: str
    size: int
    operator: str

    @property
    def parts(self) -> str:
        return counted(self.count, "part")

    @property
    def instead(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def devices(self) -> str:
        return counted(self.size, "device")


class BadSizes(Traced):
    """The sizes of the parts must add up to the size of the dimension: `into m = [3, 5]` needs 8."""

    code = "E0209"
    title = "the parts' sizes add up to {total}, but `{dim}` has {size}"
    note = "{where}"
    help = "{change}"
    index: str
    total: int
    dim: str
    size: int
    paths: tuple[str, ...]
    has_others: bool  # whether the statement names operators that can be cut so

    @property
    def change(self) -> str:
        if self.has_others:
            return "leave these whole: write `where possible` after the statement"
        return f"give sizes that add up to {self.size}, or a number of equal parts: `into {self.index} = 2`"

    @property
    def instead(self) -> tuple[str, ...]:
        return () if self.has_others else (f"{self.index} = 2",)

    @property
    def where(self) -> str:
        return places(self.paths, f"{self.dim} = {self.size}")


class NoSuchPhrase(Traced):
    """After an index, `parts` lists the chunks of each part: `into cp parts [[0, 3], [1, 2]]`."""

    code = "E0263"
    title = "`{word}` cannot follow an index"
    help = "write `parts [[0, 3], [1, 2]]` to list the chunks of each part, or a comma before another index"
    word: str

    @property
    def instead(self) -> tuple[str, ...]:
        return ("parts",)


class BadChunks(Traced):
    """The chunks of `parts` are numbered from 0, and each belongs to one part: `[[0, 3], [1, 2]]` are four chunks."""

    code = "E0264"
    title = "`parts` names {count} chunks, but {what}"
    help = "name each of the chunks 0 to {last} once"
    count: int
    what: str
    last: int


class BadCount(Traced):
    """A number of parts is at least 1, and so is the size of a part."""

    code = "E0215"
    title = "cannot cut into {parts}"
    help = "give at least 1"
    parts: str


class BadShare(Traced):
    """A stage's share of the work is above 0: `balance(OPS, [2, 1, 1])` gives the first of three stages half of it.

    Shares are relative and need not add up to anything: `[0.5, 0.25, 0.25]` are the same.
    """

    code = "E0288"
    title = "a stage cannot have a share of {share}"
    help = "give a number above 0, or leave the stage out"
    share: Fraction | int


class TokensLeft(Diagnostic):
    """`split experts by tokens` cuts the tokens that each device has, but not into equal parts.

    Tokens are cut along the outermost dimension of the rows that go to experts, as a rule the batch, inside of all
    other cuts: with 8 samples and `ep = 2` a device has 4, so its tokens may be cut into 2 or 4 chunks of one size.
    """

    code = "E0410"
    title = "the tokens of a device cannot be cut into {count} equal parts along `{index}`"
    label = "each device has {held} of `{dim}`, after {axes_text}"
    help = "choose {divisors}"
    index: str
    count: int
    dim: str
    axes: tuple[str, ...]
    held: int

    @property
    def axes_text(self) -> str:
        """The indices that cut the tokens outside."""
        return listed(self.axes)

    @property
    def divisors(self) -> str:
        """The numbers of parts that divide what a device has."""
        return either(self.instead)

    @property
    def instead(self) -> tuple[str, ...]:
        return tuple(f"{self.index} = {n}" for n in range(self.held, 0, -1) if self.held % n == 0)
