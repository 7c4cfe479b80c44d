"""The sizes of the GPT that contenders train, as their `--model` says. `gpt:small` has hidden 256, 4 layers, 4 heads,
seq 128, batch 8, vocabulary 1000; tied embeddings, no dropout."""

from types import SimpleNamespace

from bench.peers.setup import read_arguments
from ssdsl.model.zoo import ZOO


def sizes(model: str) -> SimpleNamespace:
    """The numbers of a model of the zoo.

    >>> sizes("gpt:small,hidden=64").hidden, sizes("gpt:small,hidden=64").layers
    (64, 4)
    """
    family, _, words = model.partition(":")
    size, *options = words.split(",")
    changed = {name: int(number) for name, number in (option.split("=") for option in options)}
    return SimpleNamespace(**{**ZOO[family].sizes[size].numbers, **changed})


SIZE = sizes(read_arguments().model)
