"""The tasks that models of transformers are trained for: the classes with a loss for each, and example batches."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ssdsl.record import Record

Batch = dict[str, torch.Tensor]
SEQ = 64  # by default, if the model has that many positions
PIXELS = 224  # the side of an image, if the config does not tell
IGNORED = -100  # the label of positions that do not count in the loss, as in torch's cross_entropy
SHARE = 0.3  # the share of tokens that a masked model has to predict
HUGE = 2**28  # numbers; a larger batch of images is made on the meta device, if the model is


class NoExample(Exception):
    """No example batch can be made for a model; the text says why."""


class Sizes(Record):
    """The sizes of an example batch; None leaves one to the model's config. `target` is the length of target
    sequences."""

    batch: int = 8
    seq: int | None = None
    target: int | None = None
    pixels: int | None = None


class Example(Record):
    """A batch to be made: the config and class of its model, the sizes, and whether the model is `meta`: without
    numbers."""

    config: Any
    model: Any
    sizes: Sizes
    generator: torch.Generator
    meta: bool = False

    @property
    def seq(self) -> int:
        """The length of the sequences."""
        most = positions(self.config) or SEQ
        return self.sizes.seq or (SEQ if most > SEQ else max(most - 2, 1))  # RoBERTa's positions begin at 2, for one

    def inputs(self) -> Batch:
        """The model's main input by its name. Raises NoExample if it is unknown how to make it."""
        name = getattr(self.model, "main_input_name", "input_ids")
        if name not in INPUTS:
            raise NoExample(f"it takes `{name}`")
        return {name: INPUTS[name](self)}

    def mask(self) -> Batch:
        """A mask, int64 [batch, seq]: sequences are padded at their end by 0, 1 or 2 tokens, in turn."""
        lengths = torch.tensor([self.seq - i % 3 if self.seq > 3 else self.seq for i in range(self.sizes.batch)])
        return {"attention_mask": (torch.arange(self.seq) < lengths[:, None]).long()}

    def tokens(self, length: int) -> torch.Tensor:
        """Random tokens without special ones, [batch, length]."""
        vocab = int(self.config.get_text_config().vocab_size)
        usual = torch.ones(vocab, dtype=torch.bool)
        usual[[i for i in _special(self.config) if i < vocab and i >= 0]] = False
        known = usual.nonzero().flatten() if usual.any() else torch.arange(vocab)
        return known[torch.randint(len(known), (self.sizes.batch, length), generator=self.generator)]

    def classes(self, *shape: int) -> torch.Tensor:
        """Random classes, [batch, *shape]."""
        return torch.randint(self.config.num_labels, (self.sizes.batch, *shape), generator=self.generator)


def positions(config: Any) -> int | None:
    """The length that a sequence may have at most; None if the model sets no limit."""
    found = getattr(config.get_text_config(), "max_position_embeddings", None)
    return found if isinstance(found, int) and found > 0 else None


def _special(config: Any) -> list[int]:
    """The tokens with a special meaning."""
    found = [value for name, value in vars(config).items() if name.endswith("_token_id")]
    return [i for value in found for i in (value if isinstance(value, list) else [value]) if isinstance(i, int)]


# -- inputs ------------------------------------------------------------------------------------------------------------


def _pixels(example: Example) -> torch.Tensor:
    """Images of noise, [batch, channels, height, width]."""
    config = example.config if hasattr(example.config, "image_size") else getattr(example.config, "vision_config", None)
    size = example.sizes.pixels or getattr(config, "image_size", None) or PIXELS
    height, width = size if isinstance(size, (tuple, list)) else (size, size)
    shape = example.sizes.batch, getattr(config, "num_channels", 3), height, width
    if example.meta and math.prod(shape) > HUGE:
        return torch.empty(shape, device="meta")
    return torch.randn(shape, generator=example.generator)


def _sound(example: Example) -> torch.Tensor:
    """Spectrograms of noise, [batch, mel_bins, frames], as long as possible: two frames for each position."""
    config = example.config
    if not (hasattr(config, "num_mel_bins") and hasattr(config, "max_source_positions")):
        raise NoExample("the length of its `input_features` is not known")
    shape = example.sizes.batch, config.num_mel_bins, 2 * config.max_source_positions
    return torch.randn(shape, generator=example.generator)


INPUTS: Mapping[str, Callable[[Example], torch.Tensor]] = {
    "input_ids": lambda example: example.tokens(example.seq),
    "pixel_values": _pixels,
    "input_features": _sound,
}

# -- tasks -------------------------------------------------------------------------------------------------------------


def _causal(example: Example) -> Batch:
    """The labels are the tokens; the model shifts them by one."""
    tokens = example.tokens(example.seq)
    return {"input_ids": tokens, "labels": tokens.clone()}


def _masked(example: Example) -> Batch:
    """A random share of the tokens are labels too. They are not replaced by mask tokens in the input."""
    tokens = example.tokens(example.seq)
    asked = torch.rand(tokens.shape, generator=example.generator) < SHARE
    return {"input_ids": tokens, **example.mask(), "labels": torch.where(asked, tokens, IGNORED)}


def _seq2seq(example: Example) -> Batch:
    """Every third target is one token shorter than the others: its last label does not count."""
    inputs = example.inputs()
    labels = example.tokens(example.sizes.target or example.seq)
    labels[::3, -1] = IGNORED
    return {**inputs, **(example.mask() if "input_ids" in inputs else {}), "labels": labels}


def _pairs(example: Example) -> Batch:
    """Source and target are any random tokens; the decoder reads the target, shifted by one position."""
    vocab, batch, lengths = int(example.config.vocab_size), example.sizes.batch, (example.seq, example.sizes.target)
    source, target = (torch.randint(vocab, (batch, n or example.seq), generator=example.generator) for n in lengths)
    read = torch.cat([torch.zeros(batch, 1, dtype=target.dtype), target[:, :-1]], dim=1)
    return {"input_ids": source, "decoder_input_ids": read, "labels": target}


def _classified(example: Example) -> Batch:
    inputs = example.inputs()
    return {**inputs, **(example.mask() if "input_ids" in inputs else {}), "labels": example.classes()}


def _tagged(example: Example) -> Batch:
    return {**example.inputs(), **example.mask(), "labels": example.classes(example.seq)}


class TrainingTask(Record):
    """A task: what it is, the classes of transformers that know models for it, and how to make a batch."""

    about: str
    auto: tuple[str, ...]
    batch: Callable[[Example], Batch]


SEQUENCES = ("AutoModelForSequenceClassification", "AutoModelForAudioClassification")
TASKS: Mapping[str, TrainingTask] = {  # a config's default is the first task that it has a model for
    "seq2seq": TrainingTask("a target from a source", ("AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq"), _seq2seq),
    "masked": TrainingTask("masked tokens", ("AutoModelForMaskedLM",), _masked),
    "causal": TrainingTask("the next token", ("AutoModelForCausalLM",), _causal),
    "image": TrainingTask("the class of an image", ("AutoModelForImageClassification",), _classified),
    "sequence": TrainingTask("the class of a sequence", SEQUENCES, _classified),
    "token": TrainingTask("the class of each token", ("AutoModelForTokenClassification",), _tagged),
}
PAIRS = "pairs"  # the task of the zoo's models with a decoder, which no option names
EVERY = {**TASKS, PAIRS: TrainingTask("a target from a source, without masks", TASKS["seq2seq"].auto, _pairs)}


def batch_of(task: str, example: Example) -> Batch:
    """A batch of random numbers. Raises NoExample."""
    return EVERY[task].batch(example)


def model_class(library: Any, config: Any, task: str) -> Any:
    """The class of models for a task, or None."""
    for auto in EVERY[task].auto:
        mapping = getattr(library, auto)._model_mapping
        if type(config) in mapping:
            found = mapping[type(config)]
            return found[0] if isinstance(found, (tuple, list)) else found
    return None


def tasks_of(library: Any, config: Any) -> list[str]:
    """The tasks that a config has models for; those of its `architectures` come first."""
    found = {task: cls.__name__ for task in TASKS if (cls := model_class(library, config, task)) is not None}
    named = getattr(config, "architectures", None) or []
    return sorted(found, key=lambda task: found[task] not in named)
