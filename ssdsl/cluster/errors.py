"""Diagnostics of `--cluster`, of a cluster's file, and of measuring this machine: E06xx."""

from ssdsl.text.diagnostic import Diagnostic, Misnamed


class UnknownCluster(Misnamed):
    """`--cluster` names none of the clusters that come with ssdsl.

    `ssdsl clusters` lists them. Clusters with one kind of device come in other sizes: `a100x64` is 64 of the devices of
    `a100x1024`. A single-node cluster cannot grow, because no link to other nodes is known. A cluster of your own is a
    TOML file: its name ends in .toml or has a slash.
    """

    code = "E0601"
    title = "there is no cluster `{name}`"
    note = "ssdsl knows {known}, and any number of their devices: `{example}`"
    help = "choose one of these, or give a file of your own: `ssdsl clusters show h200x8` prints an example"
    name: str
    known: str
    example: str = "a100x64"


class ClusterFileUnreadable(Misnamed):
    """The file that describes a cluster does not exist, may not be read, or is not a text."""

    code = "E0602"
    title = "cannot read `{path}`: {reason}"
    help = "name a TOML file: `ssdsl clusters show h200x8` prints an example"
    path: str
    reason: str


class BadToml(Diagnostic):
    """The file of a cluster is not TOML: a quotation mark, a bracket or a value is missing.

    Python's TOML parser reports where it stopped; the mistake may be a little before that place.
    """

    code = "E0603"
    title = "this is not TOML: {reason}"
    label = "the parser stopped here"
    help = "a line reads `key = value`; texts are in quotation marks, numbers are not (toml.io has the rules)"
    reason: str


class UnknownKey(Misnamed):
    """The file of a cluster has an unknown key, most likely a misspelt one.

    Units are part of the keys: `bandwidth_gb_s = 235` is in 1e9 bytes a second.
    """

    code = "E0604"
    title = "{table} has no key `{key}`"
    note = "its keys are {known}"
    help = "remove or rename it; remarks begin with #, and `source` says where a number is from"
    table: str
    key: str
    known: str


class MissingKey(Diagnostic):
    """The file of a cluster lacks a number without which no time can be estimated."""

    code = "E0605"
    title = "{table} lacks `{key}`"
    help = "add {example}"
    table: str
    key: str
    example: str


class WrongKeyType(Diagnostic):
    """A key of a cluster's file has a value of another type than it takes: `count = "4"` is a text, not a number."""

    code = "E0606"
    title = "`{key}` is {found}, not {expected}"
    help = "write {example}"
    key: str
    found: str
    expected: str
    example: str


class OutOfRange(Diagnostic):
    """A number of a cluster's file is impossible: for example a negative bandwidth, or an efficiency above the peak."""

    code = "E0607"
    title = "`{key}` is {found}, and must be {range}"
    help = "write {example}"
    key: str
    found: str
    range: str
    example: str


class UnknownDevice(Misnamed):
    """`[[nodes]]` names a device that the file does not describe.

    Each device has a table of its own, `[devices.a100]`; nodes name it: `device = "a100"`.
    """

    code = "E0608"
    title = "there is no device `{name}`"
    note = "the file describes {known}"
    help = "name one of these, or describe it in a table [devices.{name}]"
    name: str
    known: str


class BadLevels(Diagnostic):
    """The levels of a cluster do not fit into each other.

    The levels of `[[nodes]]` go from the node to all nodes of the group, and `[[levels]]` join groups up to the whole
    cluster. Each joins a multiple of the devices of the one before it; the last may leave out `devices`, which are all.
    """

    code = "E0609"
    title = "{fact}"
    fact: str
    change: str


class ClusterTooSmall(Diagnostic):
    """The plan has more ranks than the cluster has devices. Only cores (`laptop`) are shared by several ranks."""

    code = "E0610"
    title = "the plan needs {world} devices, and `{cluster}` has {size}"
    help = "make the mesh smaller with --set, or choose another of `ssdsl clusters`"
    world: int
    cluster: str
    size: int


class MeasureFailed(Diagnostic):
    """`ssdsl clusters measure` starts a few processes that compute and talk over gloo; one of them died or hung."""

    code = "E0611"
    title = "measuring process {rank} {ending}"
    note = "{error}"
    rank: int
    ending: str
    error: str
    change: str


class ClusterFileUnwritable(Diagnostic):
    """The measured numbers could not be saved; what was there before is unchanged."""

    code = "E0612"
    title = "cannot write `{path}`: {reason}"
    help = "name a file in a folder that you may write: ssdsl clusters measure --out laptop.toml"
    path: str
    reason: str


class AxisAcrossNodes(Diagnostic):
    """Devices on several nodes exchange activations along this axis, in every layer, while they wait for each other.

    Ranks go to nodes in order: with eight devices a node, ranks 0 to 7 are on the first. A mesh numbers its devices by
    its last axis first, so the last axes lie inside a node. Tensor parallelism (and any other split whose collectives
    are inside a layer) belongs there, because links inside a node are many times faster. Gradients, which are exchanged
    once a step, and the transfers of a pipeline can cross nodes.
    """

    code = "E0613"
    severity = "warning"
    title = "`{axes}` exchanges activations between nodes of `{cluster}`"
    label = "{where}"
    note = "{traffic}"
    axes: str
    cluster: str
    where: str
    traffic: str
    change: str
