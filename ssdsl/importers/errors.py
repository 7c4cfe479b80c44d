"""Mistakes in what is imported, and in what is asked of an importer."""

from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.source import Span


class NothingToImport(Diagnostic):
    """What was given to `ssdsl import` is neither of what it reads.

    A file is recognised by what stands in it, a command line by its flags: of Megatron-LM, Megatron-Bridge or
    Megatron-DeepSpeed; a TOML or a Python config of torchtitan; a table of PyTorch's pipelines, in CSV; a trace of
    PyTorch's profiler, in JSON; `hf:TYPE` for the plans in configs of transformers.
    """

    code = "E0700"
    title = "`{shown}` is nothing that ssdsl imports"
    note = "{reason}"
    help = "give a file, `hf:TYPE`, or a command line in quotes; `--from` says what it is: {kinds}"
    shown: str
    reason: str
    kinds: str


class TraceUnreadable(Diagnostic):
    """A trace of PyTorch's profiler is JSON with a list of events, plain or compressed: `torch.profiler.profile`, then
    `export_chrome_trace("trace.json.gz")`.

    Calls are known by the shapes of their tensors, which the profiler records only with `record_shapes=True`. Record
    some steps after the first ones, of training that is not compiled. With `repeat=1` the profiler keeps what it has
    recorded; else it forgets that when its next cycle begins:

        steps = schedule(wait=1, warmup=2, active=5, repeat=1)
        with profile(record_shapes=True, schedule=steps) as prof:
            for batch in batches:
                ...
                prof.step()
        prof.export_chrome_trace("trace.json.gz")
    """

    code = "E0709"
    title = "cannot take costs from `{file}`: {reason}"
    help = "{change}"
    file: str
    reason: str
    change: str


class NoTraining(Diagnostic):
    """A script of Megatron has no command that trains, as far as it can be followed without running it.

    A command that trains has flags of Megatron-LM, such as `--num-layers`, or overrides of Megatron-Bridge, such as
    `model.tensor_model_parallel_size=4`. Files that the script reads are looked for beside it. Variables that it gets
    from its environment are unknown, and a command that is made of them alone is, too.
    """

    code = "E0701"
    title = "`{name}` has no command that trains"
    note = "{reason}"
    help = "give the command line itself, in quotes"
    name: str
    reason: str


class NoNumber(Diagnostic):
    """The value of a flag is none of those that it takes."""

    code = "E0702"
    title = "`--{flag}` takes {kind}, not `{value}`"
    help = "write {kind} there"
    flag: str
    value: str
    kind: str


class NoValue(Diagnostic):
    """A flag takes a value, and the next word is another flag, or there is none.

    In a script its value may be a variable that is empty: what comes from the environment is not, but `X=` is.
    """

    code = "E0703"
    title = "`--{flag}` has no value"
    help = "write its value behind it"
    flag: str


class WrongLayout(Diagnostic):
    """The text of `--pipeline-model-parallel-layout` is no layout of the model's layers.

    Stages are divided by `|`. `E` is the embedding, `t` a layer, `m` one that predicts a further token, `L` the loss;
    commas say nothing. `t*3` is `ttt`, and `(tt|)*2` is `tt|tt|`. There are as many `t` as layers, and the number of
    stages is a multiple of `--pipeline-model-parallel-size`.
    """

    code = "E0704"
    title = "{fact}"
    help = "{change}"
    fact: str
    change: str


class WidthsDiffer(Diagnostic):
    """Widths do not fit together, in a way that Megatron refuses as well.

    Stages do not divide the layers, devices the experts, or micro-batches and replicas the batch.
    """

    code = "E0705"
    title = "{fact}"
    note = "{reason}"
    help = "{change}"
    fact: str
    reason: str
    change: str


class NotToml(Diagnostic):
    """A configuration of torchtitan is TOML: sections in brackets, and keys with values."""

    code = "E0720"
    title = "this is no TOML: {reason}"
    help = "correct this line"
    reason: str


class NoConfigFile(Diagnostic):
    """A command of torchtitan names its configuration: `--job.config_file FILE`, `CONFIG_FILE=FILE`, or since its
    version 0.3 `--module llama3 --config llama3_8b`, which is a function of a file. The file is looked for where the
    command is read from, beside the script and in the folders above it."""

    code = "E0721"
    title = "there is no file `{file}`"
    help = "run this where the file is, or give the configuration itself"
    file: str


class NoSuchConfig(Diagnostic):
    """A Python configuration of torchtitan is a function that returns a `Trainer.Config`. A file may have several, so
    the name of one stands behind a colon: `config_registry.py:llama3_8b`."""

    code = "E0722"
    title = "`{file}` has {which}"
    help = "{told}\nwrite the name of one behind the file: {file}:NAME"
    file: str
    function: str
    told: str

    @property
    def which(self) -> str:
        if self.function:
            return f"no config `{self.function}`"
        return "no config" if self.told.startswith("it has no") else "several configs"


class WorldTooSmall(Diagnostic):
    """The degrees of a configuration of torchtitan multiply to the number of its devices, or to a part of it that the
    shards of data parallelism fill up."""

    code = "E0723"
    title = "{devices} devices are no multiple of {product}, the product of the configuration's degrees"
    help = "change a degree, or the number of devices: NGPU, `--nproc_per_node`, `--nnodes`"
    devices: int
    product: int


class NotAnAction(Diagnostic):
    """A cell of a pipeline's table is an action: `2F1` is the forward of stage 2 for micro-batch 1, `2B1` its backward,
    `2I1` and `2W1` the halves of that, for inputs and for weights. `(3F1;2B0)OVERLAP_F_B` is two at once. What sends,
    receives and gathers may stand there, too: `1SEND_F0`, `2UNSHARD`."""

    code = "E0724"
    title = "`{word}` is no action of a pipeline"
    help = "write the stage, one of F, B, I and W, and the micro-batch: 2F1"
    word: str


class ActionTwice(Diagnostic):
    """Each rank runs each of its actions once. A backward is either whole (`B`) or in two halves (`I` and `W`)."""

    code = "E0725"
    title = "`{action}` is there twice"
    label = "again here"
    help = "leave out one of them"
    action: str
    first: Span

    def others(self) -> tuple[tuple[Span, str], ...]:
        return ((self.first, "first here"),)


class ActionMissing(Diagnostic):
    """A table has a forward and a backward, `B` or `I` and `W`, for each stage and each micro-batch up to the largest
    number in it."""

    code = "E0726"
    title = "stage {stage} has no {what} of micro-batch {micro}"
    help = "add it to the row of the stage's rank"
    stage: int
    word: str
    micro: int

    @property
    def what(self) -> str:
        return self.word.removeprefix("a ")


class StageOnTwoRanks(Diagnostic):
    """All actions of a stage are in the row of one rank, which has the stage's weights."""

    code = "E0727"
    title = "stage {stage} is on rank {first} and on rank {second}"
    label = "on rank {second}"
    help = "move it into the row of rank {first}, or give the stage another number"
    stage: int
    first: int
    second: int
    where: Span

    def others(self) -> tuple[tuple[Span, str], ...]:
        return ((self.where, f"on rank {self.first}"),)


class TableDeadlock(Diagnostic):
    """Each rank runs the actions of its row in order, and waits with one until those that it needs have run: a forward
    for that of the stage before, a backward for that of the stage behind. In this table ranks wait in a circle."""

    code = "E0728"
    title = "rank {rank} waits for ever in front of `{action}`"
    label = "rank {rank} waits for `{need}`"
    help = "move one of these in front of the other in its row"
    steps: tuple[tuple[Span, int, str, str], ...]

    @property
    def rank(self) -> int:
        return self.steps[0][1]

    @property
    def action(self) -> str:
        return self.steps[0][2]

    @property
    def need(self) -> str:
        return self.steps[0][3]

    def others(self) -> tuple[tuple[Span, str], ...]:
        return tuple((span, f"rank {rank} waits for `{need}`") for span, rank, _, need in self.steps[1:])


class NotJson(Diagnostic):
    """A config of DeepSpeed is JSON: an object with keys in quotes, without comments, and without a comma behind the
    last value."""

    code = "E0730"
    title = "this is no JSON: {reason}"
    help = "correct this line"
    reason: str


class UnreadableConfig(Diagnostic):
    """A file that a command line names, or that was given, is no config of the kind that it should be: DeepSpeed's is
    JSON, `--yaml-cfg` and the configs of Megatron's tests are YAML."""

    code = "E0706"
    title = "`{name}` is no {kind}"
    note = "{reason}"
    help = "{change}"
    name: str
    kind: str
    reason: str
    change: str


class BadWidth(Diagnostic):
    """A width of `hf:TYPE,tp=4,ep=2,pp=2,fsdp=2`, or a size of a DistributedConfig, is no number of devices."""

    code = "E0710"
    title = "`{name}` is a number of devices, not `{value}`"
    help = "give a whole number of at least 1, as in {name}=2"
    name: str
    value: str


class WidthsUnfit(Diagnostic):
    """transformers has no mesh of these widths: experts are divided over the devices that share weights in parts and
    those of a layer, so `ep` is a multiple of `tp` and divides `fsdp` times `tp`."""

    code = "E0711"
    title = "{experts} devices cannot divide the experts with tp = {tensor} and fsdp = {shards}"
    note = "`ep` is a multiple of `tp`, and divides fsdp · tp"
    help = "{change}"
    experts: int
    tensor: int
    shards: int

    @property
    def change(self) -> str:
        """A width that fits."""
        if self.experts % self.tensor:
            return f"give ep={self.tensor}, or another multiple of tp"
        return f"give fsdp={self.experts // self.tensor}, or a smaller ep"


class ConfigWithoutType(Diagnostic):
    """The source asks for widths of a model of transformers, and does not say which.

    `hf:llama,tp=4` names the type. A DistributedConfig in JSON does not: add `"model_type": "llama"` to it, or give it
    beside the type: `hf:llama,plan=distributed.json`.
    """

    code = "E0712"
    title = "`{given}` names no type of transformers"
    note = "{reason}"
    help = 'add "model_type" to the file, or give the type beside it: hf:llama,plan=FILE.json'
    given: str
    reason: str


class DistributedUnreadable(Diagnostic):
    """A DistributedConfig cannot be read: there is no such file, or it is no JSON of keys and values."""

    code = "E0713"
    title = "cannot read the DistributedConfig `{path}`: {reason}"
    help = "give a file as `DistributedConfig.to_json_file` writes it"
    path: str
    reason: str
