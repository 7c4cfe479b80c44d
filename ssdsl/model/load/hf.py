"""Loads a model of transformers that a text describes: its config, the sizes of its batch, its task and formats; and
builds it: the class for the task, the batches, the names of their axes.

It is built from the config, with random weights; nothing is downloaded.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ssdsl.lang.suggest import listed, suggest
from ssdsl.model.load.batch import axes_of, cast
from ssdsl.model.load.errors import CannotBuild, ConfigUnreadable, NoTask, TransformersMissing, UnknownType
from ssdsl.model.load.hf_tasks import (
    PAIRS,
    TASKS,
    Example,
    NoExample,
    Sizes,
    batch_of,
    model_class,
    positions,
    tasks_of,
)
from ssdsl.model.load.model import Model
from ssdsl.model.load.read_fields import read_fields
from ssdsl.model.load.spec import (
    CHOICES,
    DTYPES,
    ModelSpec,
    SpecWord,
    accepted,
    known_options,
    own_options,
    read_option,
    read_value,
    unknown_option,
)
from ssdsl.model.load.unmaterialised import made
from ssdsl.record import Record, field, replace
from ssdsl.runtime.program.recipes import Recipes
from ssdsl.runtime.random.counter_rng import Generator
from ssdsl.text.diagnostic import PlanError

SIZES = {
    "batch": 8,
    "seq": 64,
    "target": 64,
    "pixels": 224,
}  # options that are sizes of the batch, each with an example value
OWN = {"task": "", **SIZES, "dtype": "fp32", "autocast": "fp32"}  # all options that are no fields of a config
CHANGE = "change one of these numbers"
WRITE = "write a function that returns the module and its inputs: path/to/file.py:function"


class Asked(Record):
    """A request for a model: its type (`kind`), fields of its config, and options.

    `name` is the user's name for it, `own` has further options. A task, a size or a format that is None is the model's
    own.
    """

    name: str
    kind: str
    fields: Mapping[str, Any]
    sizes: Sizes = field(default_factory=Sizes)
    task: str | None = None
    dtype: str | None = None
    autocast: str | None = None
    own: tuple[str, ...] = ()


def load_hf(spec: ModelSpec, seed: int, generator: Generator, meta: bool | None) -> Model:
    """The model of `hf:TYPE,option=value,...` or `hf:path/to/config.json,...`. Raises PlanError."""
    library = transformers_library(spec.source.text)
    first, *words = spec.words or (SpecWord(spec.source, "", spec.rest.start),)
    kind, fields = _described(library, first)
    return load_asked(spec, Asked(kind, kind, fields), words, seed, generator, meta)


def load_asked(
    spec: ModelSpec, asked: Asked, words: Sequence[SpecWord], seed: int, generator: Generator, meta: bool | None
) -> Model:
    """The model that is asked for, changed by the options in `words`; with `meta` None a large one has no numbers.

    Raises PlanError.
    """
    library, name = transformers_library(spec.source.text), spec.source.text
    try:
        asked = _with_options(library, asked, words)
        with silent(library):
            fields = {key: value for key, value in asked.fields.items() if key != "model_type"}
            config = library.CONFIG_MAPPING[asked.kind].from_dict(fields)
        task, sizes = _task(library, spec, asked, config, words), asked.sizes
        _check_length(asked, config, words)
        dtype = asked.dtype or _written(getattr(config, "dtype", None))
        cast = getattr(torch, DTYPES[asked.autocast]) if asked.autocast else None
        return build(name, config, task, sizes, dtype=dtype, autocast=cast, seed=seed, generator=generator, meta=meta)
    except NoExample as error:
        fact = f"no example batch is known for `{asked.name}`: {error}"
        raise PlanError(NoTask(spec.rest, "", fact, "", WRITE)) from error
    except PlanError:
        raise
    except Exception as error:  # a config or a constructor may raise anything
        raise _cannot_build(library, spec, asked, words, error) from error


def _cannot_build(
    library: Any, spec: ModelSpec, asked: Asked, words: Sequence[SpecWord], error: Exception
) -> PlanError:
    """The error for a model that a library cannot build, with the last line of the library's message. A model of text
    and images cannot be built as one of text alone, for which there is often a type of its own."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    reason = re.sub(r"^\w*Error: ", "", lines[-1].rstrip(".")) if lines else type(error).__name__
    text = f"{asked.kind}_text"
    if text in library.CONFIG_MAPPING:
        change = f"take its model of text: hf:{text}"
    else:
        change = CHANGE if any(word.option not in OWN for word in words) else WRITE
    return PlanError(CannotBuild(spec.rest, asked.name, reason, change, tuple(read_fields(error).items())))


# -- the config --------------------------------------------------------------------------------------------------------


def _described(library: Any, first: SpecWord) -> tuple[str, dict[str, Any]]:
    """The type of the model, and the fields that its config file has."""
    path, is_type = Path(first.text), first.text in library.CONFIG_MAPPING
    if path.suffix == ".json" or "/" in first.text or (first.text and not is_type and path.is_dir()):
        return _read(library, first, path / "config.json" if path.is_dir() else path)
    _check_type(library, first, first.text)
    return first.text, {}


def _check_type(library: Any, place: SpecWord, name: str) -> None:
    known = list(library.CONFIG_MAPPING)
    if name not in known:
        change = "choose one of these, or give a config: hf:path/to/config.json"
        hint = suggest(name, known)
        raise PlanError(UnknownType(place.span(), hint, name, library.__version__, len(known), change))


def _read(library: Any, first: SpecWord, path: Path) -> tuple[str, dict[str, Any]]:
    change = "give the path of a model's config.json"
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        change = "nothing is downloaded: give the path of the model's config.json, or a type such as hf:llama"
        raise PlanError(ConfigUnreadable(first.span(), str(path), "no such file", change)) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise PlanError(ConfigUnreadable(first.span(), str(path), reason.lower(), change)) from error
    except json.JSONDecodeError as error:
        where = f"it is no JSON: {error.msg.lower()} at line {error.lineno}, column {error.colno}"
        raise PlanError(ConfigUnreadable(first.span(), str(path), where, "correct the file")) from error
    if not isinstance(found, dict) or not isinstance(found.get("model_type"), str):
        change = 'add the type, as in {"model_type": "llama"}'
        raise PlanError(ConfigUnreadable(first.span(), str(path), "it has no `model_type`", change))
    _check_type(library, first, found["model_type"])
    return found["model_type"], found


# -- options -----------------------------------------------------------------------------------------------------------


def _with_options(library: Any, asked: Asked, words: Iterable[SpecWord]) -> Asked:
    """The request with options applied: our own, and fields of the config by their names."""
    plain = library.CONFIG_MAPPING[asked.kind]()
    known = known_options(plain)
    fields = dict(asked.fields)
    for word in words:
        if word.option in OWN:
            asked = _with_own(asked, word)
        elif word.option in known:
            name = plain.attribute_map.get(word.option, word.option)
            now = fields.get(name, vars(plain).get(name))  # as an attribute, some that differ by layer are refused
            fields[name] = accepted(asked.name, word, read_value(word.option, word.value, known[word.option], now))
        else:
            own = tuple(dict.fromkeys([*asked.own, *OWN]))
            raise unknown_option(asked.name, word, own, own_options(plain), known)
    return replace(asked, fields=fields)


def _with_own(asked: Asked, word: SpecWord) -> Asked:
    """The request with one option applied that is no field of the config."""
    option = word.option
    choices = tuple(TASKS) if option == "task" else CHOICES.get(option, ())
    value = accepted(asked.name, word, read_option(option, word.value, OWN[option], choices))
    changed = {"sizes": replace(asked.sizes, **{option: value})} if option in SIZES else {option: value}
    return replace(asked, **changed)


def _task(library: Any, spec: ModelSpec, asked: Asked, config: Any, words: Iterable[SpecWord]) -> str:
    tasks = tasks_of(library, config)
    if asked.task in (*tasks, PAIRS):
        return str(asked.task)
    if not asked.task and tasks:
        return tasks[0]
    known = f"it has {listed(tasks)}" if tasks else f"known are {listed(TASKS)}"
    place = next((w.span() for w in words if w.option == "task"), spec.rest)
    fact = f"`{asked.name}` has no model for " + (f"the task `{asked.task}`" if asked.task else "any task")
    change = f"choose one of these: task={tasks[0]}" if tasks else WRITE
    raise PlanError(NoTask(place, "", fact, known, change))


def _check_length(asked: Asked, config: Any, words: Iterable[SpecWord]) -> None:
    most = positions(config)
    for word in words:
        if word.option in ("seq", "target") and most is not None and int(word.value) > most:
            fact = f"{word.option} = {word.value} is longer than its {most} positions"
            change = f"choose {word.option}={most} at most, or max_position_embeddings={word.value}"
            raise PlanError(CannotBuild(word.span(), asked.name, fact, change))


def _written(dtype: Any) -> str:
    """The zoo's word for a config's dtype of weights: `bf16`."""
    name = str(dtype).removeprefix("torch.")
    return next((word for word, other in DTYPES.items() if other == name), "fp32")


# -- building from a config --------------------------------------------------------------------------------------------


BATCHES = 4
LARGE = 10**8  # parameters; a larger model is built without their numbers, unless the user asks for them


def build(
    name: str,
    config: Any,
    task: str,
    sizes: Sizes,
    *,
    dtype: str = "fp32",
    autocast: torch.dtype | None = None,
    seed: int = 0,
    generator: Generator = "hash",
    meta: bool | None = False,
) -> Model:
    """The model of a config for a task that it has, with random weights and batches.

    Raises NoExample if no batch is known for it, and what transformers raises.
    """

    def make(library: Any) -> Any:
        complete(config, task)
        module = model_class(library, config, task)(config)
        if task == "causal" and getattr(module, "loss_type", "") is None:
            module.loss_type = "ForCausalLM"  # some classes name none, and warn that they fall back to this one
        return module

    def count(library: Any) -> Any:
        with torch.device("meta"):
            return make(library)

    if meta is None:
        hollow, _ = _constructed(name, count, dtype, seed, generator, False)
        meta = is_large(hollow)
    module, recipes = _constructed(name, make, dtype, seed, generator, meta)
    draws = (torch.Generator().manual_seed(seed + i) for i in range(BATCHES))
    examples = (Example(config, type(module), sizes, each, meta) for each in draws)
    given = tuple(cast(batch_of(task, example), getattr(torch, DTYPES[dtype])) for example in examples)
    return Model(name, module, given, axes_of(module, given[0]), generator, recipes, None, autocast)


def is_large(module: torch.nn.Module) -> bool:
    """Whether a model is built without numbers where nothing else is said."""
    return sum(p.numel() for p in module.parameters()) > LARGE


def _constructed(
    model: str, make: Callable[[Any], torch.nn.Module], dtype: str, seed: int, generator: Generator, meta: bool
) -> tuple[torch.nn.Module, Recipes | None]:
    """The module that `make` constructs from the transformers library, and its recipes, as `made` gives them.

    Warnings of transformers are silenced, because they are about generation, which is not used here. Its errors are
    shown.
    """
    library = transformers_library(model)
    with silent(library):
        module, recipes = made(lambda: make(library), getattr(torch, DTYPES[dtype]), seed, generator, meta)
    _collect_scores(module)
    return module, recipes


def _collect_scores(module: Any) -> None:
    """Adds the hooks that collect the scores of routers for the loss, if the config asks for them.

    transformers adds them in the first forward. But a forward that changes its module would be run twice more, to see
    whether it changes it each time, and that needs numbers.
    """
    if getattr(module.config, "output_router_logits", False):
        from transformers.utils.output_capturing import maybe_install_capturing_hooks

        maybe_install_capturing_hooks(module.base_model)


def complete(config: Any, task: str) -> None:
    """Fills in the fields that a config leaves open and that its model needs in training, and leaves out the cache of
    keys and values, which only generation reads."""
    for part in (config, *(getattr(config, name, None) for name in config.sub_configs)):
        if getattr(part, "use_cache", False):
            part.use_cache = False
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = config.pad_token_id or 0
    if task in ("sequence", "image") and config.problem_type is None:
        config.problem_type = "single_label_classification"
    if task == "sequence" and getattr(config, "pad_token_id", 0) is None:
        config.pad_token_id = 0


def transformers_library(model: str) -> Any:
    """The library; raises PlanError if it is not installed."""
    try:
        import transformers
    except ImportError as error:
        raise PlanError(TransformersMissing(None, model, str(error))) from error
    return transformers


@contextmanager
def silent(library: Any) -> Iterator[None]:
    """A context in which transformers reports errors only."""
    verbosity = library.logging.get_verbosity()
    library.logging.set_verbosity_error()
    try:
        yield
    finally:
        library.logging.set_verbosity(verbosity)
