"""What can be wrong with `--model hf:...`: the type, the config's file, its options and the task."""

from dataclasses import dataclass
from typing import ClassVar

from ssdsl.text.diagnostic import Diagnostic


@dataclass(frozen=True)
class UnknownType(Diagnostic):
    """`hf:` is followed by no type of models that the installed transformers knows, and by no config's file.

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
    """The config that `hf:path/to/config.json` names is not there, or is no config of a model.

    It is the `config.json` beside a model's weights: a JSON object with a `model_type`.
    """

    code: ClassVar[str] = "E0314"
    title: ClassVar[str] = "cannot read the config `{path}`: {reason}"
    help: ClassVar[str] = "{change}"
    path: str
    reason: str
    change: str


@dataclass(frozen=True)
class UnknownField(Diagnostic):
    """A model of transformers was changed by a name that its config does not have, as in `hf:llama,hiden_size=64`.

    `batch`, `seq`, `target` and `pixels` are the sizes of the example batch, `task` chooses what is trained, `dtype`
    the format of the weights and `autocast` that of computation. Other options are fields of the config.
    """

    code: ClassVar[str] = "E0315"
    title: ClassVar[str] = "`{model}` has no option `{option}`"
    label: ClassVar[str] = "{suggestion}"
    help: ClassVar[str] = "its config has {known}; besides there are {own}"
    model: str
    option: str
    suggestion: str
    known: str
    own: str


@dataclass(frozen=True)
class BadField(Diagnostic):
    """An option of a model of transformers has a value of the wrong kind, or none.

    Each value has the type of the config's field. Items of a list are joined by `-`: `depths=2-2-6-2`. What is neither
    a number, a word, a truth nor a list of these is written in a `config.json`.
    """

    code: ClassVar[str] = "E0316"
    title: ClassVar[str] = "`{option}` of `{model}` cannot be {value}"
    help: ClassVar[str] = "{change}"
    model: str
    option: str
    value: str
    change: str


@dataclass(frozen=True)
class BadConfig(Diagnostic):
    """transformers builds no model from these options, or the example batch does not fit them.

    The reason is that of transformers. Options of a config depend on each other: `hidden_size` is a multiple of
    `num_attention_heads`, and lists such as `layer_types` have an item for each layer.
    """

    code: ClassVar[str] = "E0317"
    title: ClassVar[str] = "`{model}` cannot be built like this: {reason}"
    help: ClassVar[str] = "{change}"
    model: str
    reason: str
    change: str


@dataclass(frozen=True)
class NoTask(Diagnostic):
    """A type of models has no model for a task, or the inputs of its model are not known.

    The tasks are causal, masked and sequence-to-sequence language models, and classes of images, sequences and tokens.
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
