"""Diagnostics of `--cluster`, of a cluster's file, and of measuring this machine: E06xx."""

from dataclasses import dataclass
from typing import ClassVar

from ssdsl.text.diagnostic import Diagnostic


@dataclass(frozen=True)
class UnknownCluster(Diagnostic):
    """`--cluster` names none of the clusters that come with ssdsl.

    `ssdsl clusters` lists them. Clusters with one kind of device come in other sizes: `a100x64` is 64 of the devices of
    `a100x1024`. A single-node cluster cannot grow, because no link to other nodes is known. A cluster of your own is a
    TOML file: its name ends in .toml or has a slash.
    """

    code: ClassVar[str] = "E0601"
    title: ClassVar[str] = "there is no cluster `{name}`"
    label: ClassVar[str] = "{suggestion}"
    note: ClassVar[str] = "ssdsl knows {known}, and as many of their devices as you say: `{example}`"
    help: ClassVar[str] = (
        "choose one of these, or give a file of your own: `ssdsl clusters show h200x8` prints an example"
    )
    name: str
    suggestion: str
    known: str
    example: str = "a100x64"


@dataclass(frozen=True)
class ClusterFileUnreadable(Diagnostic):
    """The file that describes a cluster does not exist, may not be read, or is not a text."""

    code: ClassVar[str] = "E0602"
    title: ClassVar[str] = "cannot read `{path}`: {reason}"
    label: ClassVar[str] = "{suggestion}"
    help: ClassVar[str] = "name a TOML file: `ssdsl clusters show h200x8` prints an example"
    path: str
    reason: str
    suggestion: str


@dataclass(frozen=True)
class BadToml(Diagnostic):
    """The file of a cluster is not TOML: a quotation mark, a bracket or a value is missing.

    Python's TOML parser reports where it stopped; the mistake may be a little before that place.
    """

    code: ClassVar[str] = "E0603"
    title: ClassVar[str] = "this is not TOML: {reason}"
    label: ClassVar[str] = "the parser stopped here"
    help: ClassVar[str] = (
        "a line reads `key = value`; texts are in quotation marks, numbers are not (toml.io has the rules)"
    )
    reason: str


@dataclass(frozen=True)
class UnknownKey(Diagnostic):
    """The file of a cluster has an unknown key, most likely a misspelt one.

    Units are part of the keys: `bandwidth_gb_s = 235` is in 1e9 bytes a second.
    """

    code: ClassVar[str] = "E0604"
    title: ClassVar[str] = "{table} has no key `{key}`"
    label: ClassVar[str] = "{suggestion}"
    note: ClassVar[str] = "its keys are {known}"
    help: ClassVar[str] = "remove or rename it; remarks begin with #, and `source` holds where a number is from"
    table: str
    key: str
    suggestion: str
    known: str


@dataclass(frozen=True)
class MissingKey(Diagnostic):
    """The file of a cluster lacks a number without which no time can be estimated."""

    code: ClassVar[str] = "E0605"
    title: ClassVar[str] = "{table} lacks `{key}`"
    help: ClassVar[str] = "add {example}"
    table: str
    key: str
    example: str


@dataclass(frozen=True)
class WrongKeyType(Diagnostic):
    """A key of a cluster's file has a value of another type than it takes: `count = "4"` is a text, not a number."""

    code: ClassVar[str] = "E0606"
    title: ClassVar[str] = "`{key}` is {found}, not {expected}"
    help: ClassVar[str] = "write {example}"
    key: str
    found: str
    expected: str
    example: str


@dataclass(frozen=True)
class OutOfRange(Diagnostic):
    """A number of a cluster's file is impossible: for example a negative bandwidth, or an efficiency above the peak."""

    code: ClassVar[str] = "E0607"
    title: ClassVar[str] = "`{key}` is {found}, and must be {range}"
    help: ClassVar[str] = "write {example}"
    key: str
    found: str
    range: str
    example: str


@dataclass(frozen=True)
class UnknownDevice(Diagnostic):
    """`[[nodes]]` names a device that the file does not describe.

    Each device has a table of its own, `[devices.a100]`; nodes name it: `device = "a100"`.
    """

    code: ClassVar[str] = "E0608"
    title: ClassVar[str] = "there is no device `{name}`"
    label: ClassVar[str] = "{suggestion}"
    note: ClassVar[str] = "the file describes {known}"
    help: ClassVar[str] = "name one of these, or describe it in a table [devices.{name}]"
    name: str
    suggestion: str
    known: str


@dataclass(frozen=True)
class BadLevels(Diagnostic):
    """The levels of a cluster do not fit into each other.

    The levels of `[[nodes]]` go from the node to all nodes of the group, and `[[levels]]` join groups up to the whole
    cluster. Each joins a multiple of the devices of the one before it; the last may leave out `devices`, which are all.
    """

    code: ClassVar[str] = "E0609"
    title: ClassVar[str] = "{fact}"
    help: ClassVar[str] = "{change}"
    fact: str
    change: str


@dataclass(frozen=True)
class ClusterTooSmall(Diagnostic):
    """The plan has more ranks than the cluster has devices. Only cores (`laptop`) are shared by several ranks."""

    code: ClassVar[str] = "E0610"
    title: ClassVar[str] = "the plan needs {world} devices, and `{cluster}` has {size}"
    help: ClassVar[str] = "make the mesh smaller with --set, or choose another of `ssdsl clusters`"
    world: int
    cluster: str
    size: int


@dataclass(frozen=True)
class MeasureFailed(Diagnostic):
    """`ssdsl clusters measure` starts a few processes that compute and talk over gloo; one of them died or hung."""

    code: ClassVar[str] = "E0611"
    title: ClassVar[str] = "measuring process {rank} {ending}"
    note: ClassVar[str] = "{error}"
    help: ClassVar[str] = "{change}"
    rank: int
    ending: str
    error: str
    change: str


@dataclass(frozen=True)
class ClusterFileUnwritable(Diagnostic):
    """The measured numbers could not be saved; what was there before is unchanged."""

    code: ClassVar[str] = "E0612"
    title: ClassVar[str] = "cannot write `{path}`: {reason}"
    help: ClassVar[str] = "name a file in a folder that you may write: ssdsl clusters measure --out laptop.toml"
    path: str
    reason: str


@dataclass(frozen=True)
class AxisAcrossNodes(Diagnostic):
    """Devices on several nodes exchange activations along this axis, in every layer, while they wait for each other.

    Ranks go to nodes in order: with eight devices a node, ranks 0 to 7 are on the first. A mesh numbers its devices by
    its last axis first, so the last axes lie inside a node. Tensor parallelism (and any other split whose collectives
    are inside a layer) belongs there, because links inside a node are many times faster. Gradients, which are exchanged
    once a step, and the transfers of a pipeline can cross nodes.
    """

    code: ClassVar[str] = "E0613"
    severity: ClassVar[str] = "warning"
    title: ClassVar[str] = "`{axes}` exchanges activations between nodes of `{cluster}`"
    label: ClassVar[str] = "{where}"
    note: ClassVar[str] = "{traffic}"
    help: ClassVar[str] = "{change}"
    axes: str
    cluster: str
    where: str
    traffic: str
    change: str
