"""Mistakes in what is imported, and in what is asked of an importer."""

from ssdsl.text.diagnostic import Diagnostic


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
