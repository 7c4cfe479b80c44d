"""Diagnostics of views: repeated work (E0267), more traffic (E0298), devices that are too full (E0614, E0615), locks of
communication (E0620 to E0622)."""

from ssdsl.text.diagnostic import Diagnostic


class RepeatedWork(Diagnostic):
    """Every device along an axis repeats most of the work, so the axis makes nothing faster.

    An operator that no statement splits by an index of the axis's name is computed whole by each of the devices: also
    where `split ... where possible` finds no dimension of the name. `ssdsl show PLAN ops` shows how each operator is
    split, `show dims` what it can be split by.
    """

    code = "E0267"
    severity = "warning"
    title = "{share} of the work is repeated by each of {devices} devices along `{axis}`"
    label = "{operators} operators are not split into `{axis}`, most of it in `{most}`"
    help = "split them: `split model by ... into {axis}`, or give the axis 1 device"
    axis: str
    devices: int
    share: str
    operators: int
    most: str


class RecomputedInVain(Diagnostic):
    """A `recompute` costs time and saves no memory: backward keeps as much as without it.

    A recomputed unit keeps what enters it and makes the rest again. So it saves nothing if what enters is as large as
    what its operators would save: one operator that saves its operand, for instance. Results are made again, too, if
    only operators of the same layer save them; they are kept if another layer or another unit reads them, if a kernel
    that combines parts saves them, or if an `order` cuts backward into halves. `ssdsl show PLAN program` names them
    after `again`. The bytes are those of one device and one task of each stage; with `--cluster` those of its kernels,
    which may save less than PyTorch does.
    """

    code = "E0296"
    severity = "warning"
    title = "this `recompute` saves no memory"
    label = "with it {kept} are kept for backward, without it {without}"
    help = (
        "recompute more together, in one statement: a whole module, or an activation with the product behind it; "
        "or remove the line"
    )
    kept: str
    without: str


class MoreTraffic(Diagnostic):
    """A split in time makes devices exchange more activations than the plan without it does.

    An index that is no axis of a mesh cuts the whole dimension, and its parts run one after another. If the operators
    around are cut otherwise over devices, what one device has may all lie in one of these parts. Devices then gather
    each part, instead of exchanging what each of them needs. Nothing is wrong with the results.

    The figures are bytes of activations and of their gradients that all devices send in a step, in the program of the
    plan and in that of the plan without the statement; `ssdsl show PLAN comm` lists them by kind. Weights that are
    gathered for each part do not count. Tokens of a mixture of experts have chunks within what each device has, if they
    are split `by tokens`.
    """

    code = "E0298"
    severity = "warning"
    title = "`{index}` makes devices send {sent} of activations in a step; without it they send {without}"
    label = "cuts `{module}` in time, but not operators beside it, which {axes} cut otherwise"
    index: str
    module: str
    sent: str
    without: str
    axes: str
    line: str | None  # a statement that cuts what each device has instead

    @property
    def change(self) -> str:
        """The statement to write instead, if one sends as little as the plan without this one."""
        if self.line is not None:
            return (
                f"write `{self.line}`: the parts are then chunks of each device's own tokens, and nothing more is sent"
            )
        return (
            f"leave this out, or split all of the `model` by `{self.index}`, before the statements of {self.axes}: "
            "each part is then a part of what every device has"
        )


class DeviceOutOfMemory(Diagnostic):
    """A device needs more memory in a step than it has, so the plan cannot run on this cluster.

    The figures are those of the simulator: `ssdsl show PLAN memory` lists the parts of every role's peak, and the
    memory over time. The remedy depends on what fills the device. State (weights, gradients, the optimizer's) is cut by
    `split model.optimizer by row` where it is replicated, by tensor parallelism, and by more stages. Activations are
    fewer with `recompute`, with smaller micro-batches, and with a schedule that keeps fewer of them at a time. `ssdsl
    simulate` and `ssdsl check --cluster` end with status 1.
    """

    code = "E0614"
    title = "`{role}` needs {peak} of memory; a device of `{cluster}` has {capacity}"
    label = "{over} too much on {where}"
    note = "when it is fullest: {parts}\n{further}"
    role: str
    peak: str
    cluster: str
    capacity: str
    over: str
    where: str
    parts: str
    further: str
    change: str


class HostOutOfMemory(Diagnostic):
    """The state that a plan assigns to the host does not fit into its memory, which the devices of a node share."""

    code = "E0617"
    title = "`{role}` needs {held} of its host for each device; on `{cluster}` there are {capacity}"
    help = "cut the state: `split model.optimizer by row into` an axis along which it is replicated"
    role: str
    held: str
    cluster: str
    capacity: str


class NearlyFull(Diagnostic):
    """By the simulator, a step fills more than 95 % of a device's memory.

    The simulator does not count the memory of torch and its libraries, and gaps of the allocator: a gigabyte or more.
    The plan may run out of memory.
    """

    code = "E0615"
    severity = "warning"
    title = "`{role}` fills {share} of the memory of a device of `{cluster}`"
    label = "{peak} of {capacity} on {where}"
    note = "when it is fullest: {parts}\ntorch itself and gaps of the allocator are not counted"
    role: str
    share: str
    cluster: str
    peak: str
    capacity: str
    where: str
    parts: str
    change: str


class CommunicationChanged(Diagnostic):
    """A plan's communication is not what its lock says: the plan, the model, torch or ssdsl has changed.

    `ssdsl show PLAN comm --lock` writes the communication into a file beside the plan, `plan.comm`, with a section for
    each model and its settings. `ssdsl check` compares with it, so that nobody changes by accident what devices send:
    a layer that a plan no longer splits, an activation that is gathered twice, a new version of torch that captures a
    model otherwise. Lines with `-` are the lock's, lines with `+` are what follows today. Comments and spaces of the
    plan change nothing here.
    """

    code = "E0620"
    title = "the communication of `{plan}` is not what its lock says"
    note = "{lines}"
    help = "where that is meant, accept it: `{command}`"
    plan: str
    lines: str
    command: str


class LockUnreadable(Diagnostic):
    """A lock (`plan.comm`) has sections, each a line in brackets with the words of a model and its settings, and below
    it the communication, a line each. `ssdsl show PLAN comm --lock` writes it; what cannot be a lock is not
    overwritten."""

    code = "E0621"
    title = "`{file}` is no lock of communication: {reason}"
    help = "write it anew, where no other file is: `ssdsl show PLAN comm --lock`"
    file: str
    reason: str


class NotLocked(Diagnostic):
    """A lock says what a plan communicates for a model with its settings. It says nothing of other models and settings,
    so that nothing is compared."""

    code = "E0622"
    severity = "warning"
    title = "the lock `{file}` has no section for `{words}`"
    note = "it has\n{has}"
    help = "add it: `{command}`"
    file: str
    words: str
    has: str
    command: str
