"""Diagnostics of runs, and of their comparison with a single device: E05xx."""

from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.source import Span


class ModelWithoutNumbers(Diagnostic):
    """The model's weights, or its batches, live on the meta device, where tensors have shapes but no numbers.

    Such a model compiles but does not train. Examples are Swin's batches of the papers' sizes, and a module that was
    constructed on the meta device. With `--meta`, construct it as usual: ssdsl records how its weights are made, and
    each process makes its own part.
    """

    code = "E0501"
    title = "`{model}` has shapes but no numbers, so it cannot be trained"
    help = "choose a small size (`ssdsl models`), or construct the module as usual and give `--meta`"
    model: str


class NoCompiler(Diagnostic):
    """Compiled kernels of a CPU are C++ that torch compiles when a run begins; it looks for `g++` and `clang++`, or the
    compiler that the environment variable CXX names."""

    code = "E0517"
    title = "{reason}"
    help = "{change}"
    reason: str
    change: str


class RankFailed(Diagnostic):
    """A process of the program failed, so the run was ended, and the other processes with it.

    The note is the end of that process's error. If several failed, it is the first, because the others mostly report
    only that a peer has gone.
    """

    code = "E0502"
    title = "rank {rank} {ending}"
    note = "{error}"
    rank: int
    ending: str
    error: str
    change: str


class LaunchFailed(Diagnostic):
    """torchrun ended before a process of the program did: it could not start them, or could not reach its own port."""

    code = "E0503"
    title = "torchrun could not run the program (exit status {status})"
    note = "{error}"
    help = "the whole output is in {log}"
    status: int
    error: str
    log: str


class ResultMissing(Diagnostic):
    """No process reported an error, but one did not write its result: the program folder was changed by hand."""

    code = "E0504"
    title = "rank {rank} ended without writing {file}"
    note = "{reason}"
    help = "compile the plan again with this version of ssdsl"
    rank: int
    file: str
    reason: str


class TooFewDevices(Diagnostic):
    """`--device cuda` runs one process per GPU, and the plan's meshes have more devices than this machine has GPUs."""

    code = "E0505"
    title = "the plan needs {needed} GPUs, and this machine has {found}"
    needed: int
    found: int

    @property
    def change(self) -> str:
        """Fewer devices, or a shared GPU, if there is one; or none."""
        if self.found == 0:
            return "run on processors: --device cpu"
        return "make the meshes smaller, or let processes share GPUs: --backend nccl or gloo; or --device cpu"


class TooFewProcesses(Diagnostic):
    """A run starts one process per device of the plan's meshes, and this plan has more than the run may start.

    The limit keeps a plan for a thousand GPUs from starting a thousand processes on a laptop; `--processes` sets
    another.
    """

    code = "E0506"
    title = "the plan's meshes have {needed} devices, one process each, and a run may start at most {allowed}"
    label = "{needed} devices with the meshes before it"
    help = "make the meshes smaller with --set, or allow more with --processes {needed}"
    needed: int
    allowed: int


class NodesMisfit(Diagnostic):
    """A run has one process for each device of the plan's meshes, and equally many on each machine.

    So `--nnodes` times `--nproc-per-node` must be the number of devices; with `--nnodes` alone, `--nproc-per-node`
    follows.
    """

    code = "E0516"
    title = "the plan's meshes have {needed} devices: {nodes} nodes of {found} do not fit"
    label = "{needed} devices with the meshes before it"
    help = "{change}, or change the meshes with --set"
    needed: int
    nodes: int
    found: str
    change: str

    @classmethod
    def of(cls, span: Span | None, needed: int, nodes: int, per_node: int | None) -> "NodesMisfit":
        """The diagnostic with the change that makes it fit."""
        found = f"{per_node} processes" if per_node is not None else "equally many processes"
        if needed % nodes == 0:
            return cls(span, needed, nodes, found, f"give --nproc-per-node {needed // nodes}, or leave it out")
        fitting = next(n for n in range(nodes, 0, -1) if needed % n == 0)
        return cls(span, needed, nodes, found, f"start {fitting} nodes of {needed // fitting}")


class LinkElsewhere(Diagnostic):
    """`--link` joins the processes of one machine by an emulated network; its bytes go through memory that they share.

    Ranks on several machines have a real network, and ranks on GPUs are joined by NCCL. To emulate several nodes on one
    machine, write `node=8:10Gb/s` in the text of `--link`.
    """

    code = "E0518"
    title = "--link emulates a network between processes of one machine, and {reason}"
    help = "{change}"
    reason: str
    change: str


class FolderInUse(Diagnostic):
    """The folder for the program holds other files. Only an empty folder or an earlier program is replaced."""

    code = "E0507"
    title = "`{folder}` is no program of ssdsl, and is not empty"
    help = "give another folder, or empty this one"
    folder: str


class OtherRunInFolder(Diagnostic):
    """Another run is writing into the folder of `--out`; the results of the two would be mixed.

    A run that has ended, or was killed, does not count: its folder can be used again, and `--resume` continues from its
    checkpoints. With `--nnodes` each node of a run has its own folder inside that of `--out`.
    """

    code = "E0540"
    title = "another run is writing into `{folder}`"
    note = "it is {who}"
    help = "give another folder with --out, or wait until that run has ended"
    folder: str
    who: str


class FolderUnwritable(Diagnostic):
    """The folder cannot be created, or not written to."""

    code = "E0508"
    title = "cannot write `{folder}`: {reason}"
    help = "give a folder that you may write to"
    folder: str
    reason: str


class DiskFull(Diagnostic):
    """A file could not be written in full: the disk is full, a quota is used up, or a file may not get that large.

    The incomplete file is removed. `ssdsl run` and `ssdsl verify` write the program, the ranks' results and, for
    `verify`, all gradients of every step, into the folder of `--out`, or else into the one for temporary files.
    """

    code = "E0509"
    title = "{who} cannot write to `{folder}`: no space"
    note = "{reason}"
    help = "free some space, raise the limit (ulimit -f, quota), or write elsewhere with --out DIR or TMPDIR=DIR"
    who: str
    folder: str
    reason: str


class RankStuck(Diagnostic):
    """A process did not start, end or change its task for longer than `--timeout` allows, so the run was ended.

    The process was stopped (a debugger, Ctrl-Z, a batch system), hangs in an operator, or works on one task for longer
    than the limit. The others wait for it. If every process waits, they wait for each other: that is a bug of ssdsl,
    unless the program was changed.
    """

    code = "E0513"
    title = "rank {rank}{role} has not moved for {since_s} s"
    note = "{how}\n{doing}\n{waiting}"
    help = "if one task may take that long, allow more with --timeout {more}"
    rank: int
    role: str
    since_s: int
    how: str
    doing: str
    waiting: str
    more: str


class SparseGradients(Diagnostic):
    """A weight has sparse gradients on one device, and the optimizer does not take any.

    `nn.Embedding(sparse=True)` and `nn.EmbeddingBag(sparse=True)` make gradients that hold only the rows that were
    looked up. Adam and AdamW refuse them, so PyTorch could not train the model on one device. A plan's gradients are
    the same numbers, dense: with an optimizer that takes both (SGD, Adagrad), it trains what one device does.
    """

    code = "E0541"
    title = "on one device the gradients of `{weight}` are sparse, and {optimizer} does not take them"
    note = "PyTorch says: {reason}"
    help = "make the embedding without `sparse=True`, or choose another optimizer: --optimizer sgd"
    weight: str
    optimizer: str
    reason: str


class OutOfMemory(Diagnostic):
    """A process could not allocate memory: the machine or the GPU has no more, or a limit is reached.

    Limits are those of the shell (`ulimit -v`), of a batch system or of a container.
    """

    code = "E0514"
    title = "{who} ran out of memory"
    note = "{reason}"
    help = "cut the model or the batch into more parts, or recompute (`ssdsl show PLAN memory`); or raise `ulimit -v`"
    who: str
    reason: str


class LossNotFinite(Diagnostic):
    """The loss became NaN or infinite. The weights mostly follow, and then later steps are useless.

    The plan is not the reason: `ssdsl verify` shows that the single device's loss is the same. With `--find-nan` in
    place of `--allow-nan` the run ends there, and says which input, weight or operator has the first such number.
    """

    code = "E0515"
    severity = "warning"
    title = "the loss is {loss} from step {step} on"
    help = "give --find-nan in place of --allow-nan, to see where it comes from; or a smaller --lr (it is {lr:g})"
    loss: str
    step: int
    lr: float


class NothingToTrain(Diagnostic):
    """A resumed run begins where it should end: the checkpoint has as many steps as `--steps`, or more.

    `--steps` is the number of steps of the whole training, so that the command of a run that was interrupted can be
    typed again as it was, with `--resume`. Such a run neither trains nor saves, and has no report.
    """

    code = "E0542"
    severity = "warning"
    title = "the checkpoint is of step {first}, and --steps is {steps}: nothing left to train"
    help = "--steps counts those before a resumed run: for {steps} more steps give --steps {more}"
    first: int
    steps: int

    @property
    def more(self) -> int:
        """The number of steps with which the run trains for `steps` more."""
        return self.first + self.steps


class RunStopped(Diagnostic):
    """SIGTERM or SIGUSR1 asked the run to stop: the ranks have finished their step and saved it.

    Schedulers send such a signal before they take a machine away. Only a run with `--save`, or `--out`, stops so;
    others end at once. A second signal ends it at once, too. The exit status is 75, that of a failure that another try
    mends (EX_TEMPFAIL of sysexits.h), so that a script can tell it from an error.
    """

    code = "E0519"
    severity = "warning"
    title = "a signal asked the run to stop: {done} of {steps} steps are trained and saved"
    help = "go on with the same command and --resume {folder}"
    done: int
    steps: int
    folder: str


class NothingCompared(Diagnostic):
    """The loss is NaN or infinite in every step, on the single device too, so that `verify` had nothing to compare.

    A NaN equals a NaN, whatever the plan computed before, so that a mistake of the plan would not show. The places are
    those of one step of the model on one device: a mask has infinities on purpose, a NaN mostly is a mistake. If only
    later losses are NaN, `verify` says how many steps it compared.
    """

    code = "E0543"
    title = "the loss is {loss} from step 0 on, on one device too: nothing was compared"
    note = "{places}"
    help = "correct the model there, such as a division by zero or a logarithm of it, or its weights and example batch"
    loss: str
    places: str


class PiecesDisagree(Diagnostic):
    """Two ranks hold the same part of a tensor, with different numbers in it.

    Copies of a weight start equal and get the same gradient, so they stay equal; when they drift apart, a gradient was
    not reduced over all the copies.
    """

    code = "E0510"
    title = "ranks {first} and {second} disagree on {what} `{name}`"
    label = ""
    note = "at {index}: {first_value:.9g} on rank {first}, {second_value:.9g} on rank {second}"
    help = "this is a bug of ssdsl: report it with the plan and the model"
    what: str
    name: str
    first: int
    second: int
    index: str
    first_value: float
    second_value: float


class PiecesIncomplete(Diagnostic):
    """The ranks' pieces of a tensor do not cover it, or do not fit into it."""

    code = "E0511"
    title = "the ranks do not hold all of {what} `{name}`"
    note = "{reason}"
    help = "this is a bug of ssdsl: report it with the plan and the model"
    what: str
    name: str
    reason: str


class CodesDiffer(Diagnostic):
    """`compress OPS by topk(64) along embed` chooses numbers of each line, and rounding may change the choice. So
    `ssdsl verify` also gives each part of what compresses the single device's numbers, and gradients: what it makes of
    them is then equal to the bit."""

    code = "E0524"
    title = "a part of `{operator}` compresses otherwise than the single device"
    note = "{count} of {total} compressing operators differ"
    help = "this is a bug of ssdsl: report it with the plan and the model"
    operator: str
    count: int
    total: int


class RunDiffers(Diagnostic):
    """The plan's numbers differ from those of the single device. A plan must not change what is computed.

    The message names the first tensor that differs, in the order of training (losses, then gradients of step 0, and so
    on), because later differences mostly follow from it.

    A plan adds the same numbers in another order, so the last digits differ. How much of that reaches a tensor depends
    on the model, and is measured in two ways. The single device trains again in float64, which shows its own error,
    such as that of a long sum over thousands of tokens. And it trains again a few times, each time with every weight
    and input changed by one unit in the last place. A tensor may differ by eight times the largest of these, or by 16
    units in the last place of its largest element (the rounding of a sum; 4 for a loss, 2 a step for a weight),
    whichever is more. In half precision these are four times and 4 units; in float64 the last twelve bits do not count.
    A changed run that is infinite or NaN where the single device is not is ignored. A gradient of which nothing but
    rounding is left, such as that of a key's bias, is judged by the size of what cancels: it may differ by 16 units in
    the last place of the largest gradient, or by eight times what it moves if each element of every operator's result
    is wrong in its last digit.

    A choice among equal numbers is no rounding. torch leaves open which of them `topk` takes; along a dimension that is
    split over devices it takes those of the first part. So a model that gives equal tokens equal scores, and takes
    the best of them, may differ here without a mistake: tell them apart, for instance by their positions, or leave
    `topk` whole (`split model - model.topk by seq into tp`), and compare again.

    If the allowed difference is more than a thousandth of a tensor's largest element, as in bfloat16, a mistake could
    hide. Then the program and the single device train once more in this process, with everything computed in float64;
    results marked `in float64` are from there. The allowed rounding is the same, in units of float64. This is left out
    if the model has an operator that cannot compute in float64.

    Where a loss is zero (labels that the model already predicts), its gradients are as good as zero too, and few
    mistakes would show: a note below the table says so.

    `ssdsl verify --json` has these numbers for each tensor.
    """

    code = "E0512"
    title = "{what} `{name}` differs from the single device's"
    note = "{where}: {got:.9g} instead of {expected:.9g}\n{reason}\n{summary}"
    help = "{unless}this is a bug of ssdsl: report it with the plan and the model"
    what: str
    name: str
    where: str
    got: float
    expected: float
    reason: str
    summary: str
    chooses: bool  # the model has a `topk`

    @property
    def unless(self) -> str:
        return "unless `topk` chooses among equal numbers (`ssdsl explain E0512`), " if self.chooses else ""
