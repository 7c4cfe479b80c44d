"""Diagnostics of `--model`: a wrong name, size or option, a config, the user's file and what its function returns."""

from ssdsl.lang.suggest import joined
from ssdsl.text.diagnostic import Diagnostic, Misnamed


class UnknownModel(Misnamed):
    """`--model` names neither a model of the zoo nor a Python file.

    `ssdsl models` lists the zoo. `hf:TYPE` is a model of transformers, such as `hf:llama`. Give a model of your own as
    `path/to/file.py:function`; the function returns the module, example inputs and the names of their axes.
    """

    code = "E0301"
    title = "there is no model `{name}`"
    note = "the zoo has {known}"
    help = "choose one of these, hf:TYPE of transformers, or your own as path/to/file.py:function"
    name: str
    known: str


class UnknownSize(Misnamed):
    """The zoo model exists, but not in this size.

    A size is a name, optionally followed by changes: `gpt:350m`, `gpt:350m,layers=8`, `gpt:layers=24,hidden=1024`.
    """

    code = "E0302"
    title = "`{model}` has no size `{size}`"
    note = "its sizes are {known}"
    help = "choose one of these, or change one: {model}:{default},{example}"
    model: str
    size: str
    known: str
    default: str
    example: str


class UnknownOption(Misnamed):
    """A model has no option of this name, as in `gpt:small,layer=8` or `hf:llama,hiden_size=64`.

    A model of the zoo has the numbers that `ssdsl models --json` lists. A model of transformers, also one of the zoo,
    has the fields of its config. `batch`, `seq`, `target` and `pixels` are sizes of its example batch, `task` chooses
    what is trained, `dtype` the format of the weights and `autocast` that of computation.
    """

    code = "E0303"
    title = "`{model}` has no option `{option}`"
    help = "its options are {known}"
    model: str
    option: str
    known: str


class CannotBuild(Diagnostic):
    """The options of a model do not fit together: no model, or no batch for it, can be built from them.

    Options depend on each other: `hidden` (`hidden_size` of a config) is a multiple of the number of heads, and lists
    have an item for each stage or layer. Where transformers refuses a config, the reason is its own, and the numbers
    are those that it had read where it failed: an option that makes `vocab_size` smaller may need `pad_token_id`, too.
    """

    code = "E0304"
    title = "`{model}` cannot be built like this: {reason}"
    note = "{numbers}"
    model: str
    reason: str
    change: str
    read: tuple[tuple[str, int], ...] = ()  # the fields of a config that the failed statement reads

    @property
    def numbers(self) -> str:
        fields = [f"{name} = {value}" for name, value in self.read]
        return f"the statement that failed reads {joined(fields, 'and')}" if fields else ""


class BadValue(Diagnostic):
    """An option of a model has a value of the wrong kind, or none.

    Most options of the zoo are positive integers; `dtype` is the type of the weights (fp32, bf16, fp16), `dropout` a
    probability. A field of a config has the type that transformers gives it. Items of a list are joined by `-`:
    `depths=2-2-18-2`. Any other value than a number, a word, `true`, `false`, or a list of these needs a `config.json`.
    """

    code = "E0316"
    title = "`{option}` of `{model}` cannot be {value}"
    model: str
    option: str
    value: str
    change: str


class TransformersMissing(Diagnostic):
    """Some models, such as `gpt`, `llama` and `hf:bert`, come from the `transformers` library.

    ssdsl installs it only when asked to. `ssdsl models` lists models that do not need it, such as `moe_gpt` and
    `resnet`.
    """

    code = "E0305"
    title = "model `{model}` needs the `transformers` library"
    note = "{reason}"
    help = "pip install 'ssdsl[models]'"
    model: str
    reason: str


class ModelFileMissing(Diagnostic):
    """The Python file that `--model` names does not exist, or cannot be read."""

    code = "E0306"
    title = "cannot read `{path}`: {reason}"
    help = "give the path of a Python file and a function in it, as in --model path/to/file.py:function"
    path: str
    reason: str


class FunctionMissing(Misnamed):
    """The file has no function with the name in `--model path/to/file.py:function`, or no name was given."""

    code = "E0307"
    title = "{fact}"
    note = "`{path}` defines {known}"
    help = "name a function that returns the module, its inputs and their axes: --model {path}:{example}"
    fact: str
    path: str
    known: str
    example: str


class UserCodeFailed(Diagnostic):
    """Python raised an exception while it ran the user's file or function.

    The place shown is the last line of the user's own file that was running; the error itself may come from a library
    that this line calls.
    """

    code = "E0308"
    title = "`{path}` failed {when}"
    label = "{error}"
    note = "{detail}"
    path: str
    when: str
    error: str
    detail: str
    change: str


class BadModel(Diagnostic):
    """The user's function did not return the parts of a model.

    It takes no parameters and returns an `nn.Module` whose forward returns its loss; the inputs of one batch, as a
    dictionary of tensors by the name of forward's parameter (or a tuple in their order, or a list of such batches, all
    of one shape); then, if they are needed, the names of the inputs' axes, `{{"x": ("batch", "seq")}}`, and the place
    of the loss in the outputs: a name, a position, or a function of outputs and batch.
    """

    code = "E0309"
    title = "{fact}"
    label = "{suggestion}"
    fact: str
    change: str
    suggestion: str = ""


class BadInputs(BadModel):
    """The inputs that the user's function returned do not fit the module's forward, or the batches are not alike.

    Inputs are tensors, named as the parameters of `forward`; all batches have the same names, shapes and dtypes,
    because the plan is compiled once for all of them.
    """

    code = "E0310"


class BadAxes(BadModel):
    """The names of the axes do not fit the inputs: each axis of an input has one, and a name has one size.

    These names are the dimensions that a plan can split by: `{{"x": ("batch", "seq")}}` makes `split model by seq`
    possible. Inputs that are left out are named by convention: their first axes are `batch`.
    """

    code = "E0311"


class NumbersNeeded(Diagnostic):
    """With `--meta` a constructor reads numbers of a large tensor, which has none in this process.

    Large tensors of a model that is built without its numbers have a shape and a recipe. Tensors of fewer than 16384
    elements are real: a constructor may compute with them, unless they are computed from a large one.
    """

    code = "E0365"
    title = "{file} reads numbers of a large tensor while the model is built without them"
    label = "{reading}"
    help = "leave out `--meta`, or compute these numbers from small tensors or in Python"
    file: str
    operator: str

    @property
    def reading(self) -> str:
        asks = self.operator.removeprefix("aten.").startswith("_local_scalar_dense")
        return "one number is read, by `.item()`, `float` or `if`" if asks else f"`{self.operator}` needs the numbers"


class NoInitialiser(Diagnostic):
    """A module was constructed on the meta device, and some weight or buffer of it cannot be initialised.

    Processes make the weights of such a module by its own initialisers: `reset_parameters()` of the module that owns
    them, `_init_weights(module)` or `init_weights()` of a module around it. A function that makes the module, such as
    `lambda: Net()`, needs none of these, because its own operators are recorded. With `load_later=True` weights that a
    checkpoint will provide may lack an initialiser; buffers that are not part of a checkpoint may not.
    """

    code = "E0371"
    title = "{what} of the module on the meta device {lacks}"
    help = "{method}, or give a function that makes the module: `lambda: Net()`{later}"
    what: str
    lacks: str
    method: str
    later: str = ""


class BuiltWithNumbers(Diagnostic):
    """A command that needs no numbers has built a large model with all its numbers.

    `check`, `show`, `prove`, `simulate`, `search`, `sweep`, `diff`, `capture` and `repl` build a model of more than 100
    million numbers as with `--meta`: large tensors have a shape and a recipe. That fails if a constructor reads numbers
    of these; then the model is built with all its numbers, which takes time and memory, and gives the same result.
    """

    code = "E0348"
    severity = "warning"
    title = "`{model}` is built with all its numbers, though this command needs none"
    note = "without them: {reason}"
    help = "compute what the constructor reads from small tensors or in Python, to save time and memory"
    model: str
    reason: str


class NotCompiled(Diagnostic):
    """A module is compiled by `torch.compile`, which has no effect on programs of ssdsl.

    A plan cuts and places single operators. So ssdsl captures the module inside of the compiled one. Whether the
    program's operators run one by one, or in kernels that torch.compile makes of them, is said by `--kernels`, also of
    `simulate`; the numbers are the same. Weights and modules have the names that they have without `torch.compile`, in
    plans, checkpoints and `engine.state`.
    """

    code = "E0290"
    severity = "warning"
    title = "`torch.compile` of {which} has no effect on a program"
    help = "`--kernels compiled` compiles a program's operators; weights have their names without `_orig_mod`"
    names: tuple[str, ...]  # of modules; empty for the model itself

    @property
    def which(self) -> str:
        first, more = self.names[0], len(self.names) - 1
        return (f"`{first}`" if first else "the model") + (f" and {more} more" if more else "")


class UnknownType(Misnamed):
    """The word after `hf:` is neither a model type of the installed transformers, nor the file of a config.

    A type is the `model_type` of a config, such as `llama`, `bert` or `vit`.
    """

    code = "E0313"
    title = "transformers has no model type `{name}`"
    note = "version {version} knows {count} types, such as llama, gpt2, bert, t5 and vit"
    name: str
    version: str
    count: int
    change: str


class ConfigUnreadable(Diagnostic):
    """The config that `hf:path/to/config.json` names does not exist, or is not the config of a model.

    It is the `config.json` beside a model's weights: a JSON object with a `model_type`.
    """

    code = "E0314"
    title = "cannot read the config `{path}`: {reason}"
    path: str
    reason: str
    change: str


class NoTask(Misnamed):
    """This model type has no model for the task, or the inputs of its model are unknown.

    The tasks are causal, masked and sequence-to-sequence language models, and classification of images, sequences and
    tokens.
    """

    code = "E0318"
    title = "{fact}"
    note = "{known}"
    fact: str
    known: str
    change: str
