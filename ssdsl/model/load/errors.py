"""Diagnostics of `--model`: a wrong name, size or option, a config, the user's file and what its function returns."""

from dataclasses import dataclass
from typing import ClassVar

from ssdsl.text.diagnostic import Diagnostic


@dataclass(frozen=True)
class UnknownModel(Diagnostic):
    """`--model` names neither a model of the zoo nor a Python file.

    `ssdsl models` lists the zoo. `hf:TYPE` is a model of transformers, such as `hf:llama`. Give a model of your own as
    `path/to/file.py:function`; the function returns the module, example inputs and the names of their axes.
    """

    code: ClassVar[str] = "E0301"
    title: ClassVar[str] = "there is no model `{name}`"
    label: ClassVar[str] = "{suggestion}"
    note: ClassVar[str] = "the zoo has {known}"
    help: ClassVar[str] = "choose one of these, hf:TYPE of transformers, or your own as path/to/file.py:function"
    name: str
    suggestion: str
    known: str


@dataclass(frozen=True)
class UnknownSize(Diagnostic):
    """The zoo model exists, but not in this size.

    A size is a name, optionally followed by changes: `gpt:350m`, `gpt:350m,layers=8`, `gpt:layers=24,hidden=1024`.
    """

    code: ClassVar[str] = "E0302"
    title: ClassVar[str] = "`{model}` has no size `{size}`"
    label: ClassVar[str] = "{suggestion}"
    note: ClassVar[str] = "its sizes are {known}"
    help: ClassVar[str] = "choose one of these, or change one: {model}:{default},{example}"
    model: str
    size: str
    suggestion: str
    known: str
    default: str
    example: str


@dataclass(frozen=True)
class UnknownOption(Diagnostic):
    """A model has no option of this name, as in `gpt:small,layer=8` or `hf:llama,hiden_size=64`.

    A model of the zoo has the numbers that `ssdsl models --json` lists. A model of transformers, also one of the zoo,
    has the fields of its config. `batch`, `seq`, `target` and `pixels` are sizes of its example batch, `task` chooses
    what is trained, `dtype` the format of the weights and `autocast` that of computation.
    """

    code: ClassVar[str] = "E0303"
    title: ClassVar[str] = "`{model}` has no option `{option}`"
    label: ClassVar[str] = "{suggestion}"
    help: ClassVar[str] = "its options are {known}"
    model: str
    option: str
    suggestion: str
    known: str


@dataclass(frozen=True)
class CannotBuild(Diagnostic):
    """The options of a model do not fit together: no model, or no batch for it, can be built from them.

    Options depend on each other: `hidden` (`hidden_size` of a config) is a multiple of the number of heads, and lists
    have an item for each stage or layer. Where transformers refuses a config, the reason is its own.
    """

    code: ClassVar[str] = "E0304"
    title: ClassVar[str] = "`{model}` cannot be built like this: {reason}"
    help: ClassVar[str] = "{change}"
    model: str
    reason: str
    change: str


@dataclass(frozen=True)
class BadValue(Diagnostic):
    """An option of a model has a value of the wrong kind, or none.

    Most options of the zoo are positive integers; `dtype` is the type of the weights (fp32, bf16, fp16), `dropout` a
    probability. A field of a config has the type that transformers gives it. Items of a list are joined by `-`:
    `depths=2-2-18-2`. Any other value than a number, a word, `true`, `false`, or a list of these needs a `config.json`.
    """

    code: ClassVar[str] = "E0316"
    title: ClassVar[str] = "`{option}` of `{model}` cannot be {value}"
    help: ClassVar[str] = "{change}"
    model: str
    option: str
    value: str
    change: str


@dataclass(frozen=True)
class TransformersMissing(Diagnostic):
    """Some models, such as `gpt`, `llama` and `hf:bert`, come from the `transformers` library.

    ssdsl installs it only when asked to. `ssdsl models` lists models that do not need it, such as `moe_gpt` and
    `resnet`.
    """

    code: ClassVar[str] = "E0305"
    title: ClassVar[str] = "model `{model}` needs the `transformers` library"
    note: ClassVar[str] = "{reason}"
    help: ClassVar[str] = "pip install 'ssdsl[models]'"
    model: str
    reason: str


@dataclass(frozen=True)
class ModelFileMissing(Diagnostic):
    """The Python file that `--model` names does not exist, or cannot be read."""

    code: ClassVar[str] = "E0306"
    title: ClassVar[str] = "cannot read `{path}`: {reason}"
    help: ClassVar[str] = "give the path of a Python file and a function in it, as in --model path/to/file.py:function"
    path: str
    reason: str


@dataclass(frozen=True)
class FunctionMissing(Diagnostic):
    """The file has no function with the name in `--model path/to/file.py:function`, or no name was given."""

    code: ClassVar[str] = "E0307"
    title: ClassVar[str] = "{fact}"
    label: ClassVar[str] = "{suggestion}"
    note: ClassVar[str] = "`{path}` defines {known}"
    help: ClassVar[str] = "name a function that returns the module, its inputs and their axes: --model {path}:{example}"
    fact: str
    suggestion: str
    path: str
    known: str
    example: str


@dataclass(frozen=True)
class UserCodeFailed(Diagnostic):
    """Python raised an exception while it ran the user's file or function.

    The place shown is the last line of the user's own file that was running; the error itself may come from a library
    that this line calls.
    """

    code: ClassVar[str] = "E0308"
    title: ClassVar[str] = "`{path}` failed {when}"
    label: ClassVar[str] = "{error}"
    note: ClassVar[str] = "{detail}"
    help: ClassVar[str] = "{change}"
    path: str
    when: str
    error: str
    detail: str
    change: str


@dataclass(frozen=True)
class BadModel(Diagnostic):
    """The user's function did not return the parts of a model.

    It takes no parameters and returns an `nn.Module` whose forward returns its loss; the inputs of one batch, as a
    dictionary of tensors by the name of forward's parameter (or a tuple in their order, or a list of such batches, all
    of one shape); then, if they are needed, the names of the inputs' axes, `{{"x": ("batch", "seq")}}`, and the place
    of the loss in the outputs: a name, a position, or a function of outputs and batch.
    """

    code: ClassVar[str] = "E0309"
    title: ClassVar[str] = "{fact}"
    label: ClassVar[str] = "{suggestion}"
    help: ClassVar[str] = "{change}"
    fact: str
    change: str
    suggestion: str = ""


@dataclass(frozen=True)
class BadInputs(BadModel):
    """The inputs that the user's function returned do not fit the module's forward, or the batches are not alike.

    Inputs are tensors, named as the parameters of `forward`; all batches have the same names, shapes and dtypes,
    because the plan is compiled once for all of them.
    """

    code: ClassVar[str] = "E0310"


@dataclass(frozen=True)
class BadAxes(BadModel):
    """The names of the axes do not fit the inputs: each axis of an input has one, and a name has one size.

    These names are the dimensions that a plan can split by: `{{"x": ("batch", "seq")}}` makes `split model by seq`
    possible. Inputs that are left out are named by convention: their first axes are `batch`.
    """

    code: ClassVar[str] = "E0311"


@dataclass(frozen=True)
class NumbersNeeded(Diagnostic):
    """With `--meta` a constructor reads numbers of a large tensor, which has none in this process.

    Large tensors of a model that is built without its numbers have a shape and a recipe. Tensors of fewer than 16384
    elements are real: a constructor may compute with them, unless they are computed from a large one.
    """

    code: ClassVar[str] = "E0365"
    title: ClassVar[str] = "{file} reads numbers of a large tensor while the model is built without them"
    label: ClassVar[str] = "{reading}"
    help: ClassVar[str] = "leave out `--meta`, or compute these numbers from small tensors or in Python"
    file: str
    operator: str

    @property
    def reading(self) -> str:
        asks = self.operator.removeprefix("aten.").startswith("_local_scalar_dense")
        return "one number is read, by `.item()`, `float` or `if`" if asks else f"`{self.operator}` needs the numbers"


@dataclass(frozen=True)
class NoInitialiser(Diagnostic):
    """A module was constructed on the meta device, and some weight or buffer of it cannot be initialised.

    Processes make the weights of such a module by its own initialisers: `reset_parameters()` of the module that owns
    them, `_init_weights(module)` or `init_weights()` of a module around it. A function that makes the module, such as
    `lambda: Net()`, needs none of these, because its own operators are recorded. With `load_later=True` weights that a
    checkpoint will provide may lack an initialiser; buffers that are not part of a checkpoint may not.
    """

    code: ClassVar[str] = "E0371"
    title: ClassVar[str] = "{what} of the module on the meta device {lacks}"
    help: ClassVar[str] = "{method}, or give a function that makes the module: `lambda: Net()`{later}"
    what: str
    lacks: str
    method: str
    later: str = ""


@dataclass(frozen=True)
class BuiltWithNumbers(Diagnostic):
    """A command that needs no numbers has built a large model with all its numbers.

    `check`, `show`, `prove`, `simulate`, `sweep`, `diff` and `repl` build a model of more than 100 million numbers as
    with `--meta`: large tensors have a shape and a recipe. That fails if a constructor reads numbers of these; then the
    model is built with all its numbers, which takes time and memory, and gives the same result.
    """

    code: ClassVar[str] = "E0348"
    severity: ClassVar[str] = "warning"
    title: ClassVar[str] = "`{model}` is built with all its numbers, though this command needs none"
    note: ClassVar[str] = "without them: {reason}"
    help: ClassVar[str] = "compute what the constructor reads from small tensors or in Python, to save time and memory"
    model: str
    reason: str


@dataclass(frozen=True)
class UnknownType(Diagnostic):
    """The word after `hf:` is neither a model type of the installed transformers, nor the file of a config.

    A type is the `model_type` of a config, such as `llama`, `bert` or `vit`.
    """

    code: ClassVar[str] = "E0313"
    title: ClassVar[str] = "transformers has no model type `{name}`"
    label: ClassVar[str] = "{suggestion}"
    note: ClassVar[str] = "version {version} knows {count} types, such as llama, gpt2, bert, t5 and vit"
    help: ClassVar[str] = "{change}"
    name: str
    suggestion: str
    version: str
    count: int
    change: str


@dataclass(frozen=True)
class ConfigUnreadable(Diagnostic):
    """The config that `hf:path/to/config.json` names does not exist, or is not the config of a model.

    It is the `config.json` beside a model's weights: a JSON object with a `model_type`.
    """

    code: ClassVar[str] = "E0314"
    title: ClassVar[str] = "cannot read the config `{path}`: {reason}"
    help: ClassVar[str] = "{change}"
    path: str
    reason: str
    change: str


@dataclass(frozen=True)
class NoTask(Diagnostic):
    """This model type has no model for the task, or the inputs of its model are unknown.

    The tasks are causal, masked and sequence-to-sequence language models, and classification of images, sequences and
    tokens.
    """

    code: ClassVar[str] = "E0318"
    title: ClassVar[str] = "{fact}"
    label: ClassVar[str] = "{suggestion}"
    note: ClassVar[str] = "{known}"
    help: ClassVar[str] = "{change}"
    fact: str
    suggestion: str
    known: str
    change: str
