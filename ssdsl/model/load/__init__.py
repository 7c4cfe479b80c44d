"""Loads models: by a name of `--model`, from a function in a file, or from a module in Python."""

from typing import TYPE_CHECKING

from ssdsl.text.source import Source

if TYPE_CHECKING:
    from ssdsl.model.load.model import Model
    from ssdsl.runtime.random.counter_rng import Generator


def load(
    spec: str, *, seed: int = 0, generator: "Generator" = "hash", meta: bool | None = None, trains: bool = True
) -> "Model":
    """The model of `gpt`, `gpt:350m,layers=8,dtype=bf16`, `hf:llama` or `path/to/file.py:function`, to train.

    `seed` decides its weights and batches; `generator` draws its weights, and random numbers in training. With `meta`
    it is built without the numbers of its weights, which recipes make later. If `meta` is None, this holds for sizes of
    the zoo that are too large for a laptop, for large models of transformers, and, if the command trains nothing
    (`trains`), for large models from a user's file. Loads torch. Raises PlanError.
    """
    from ssdsl.model.load.from_file import load_user
    from ssdsl.model.load.hf import load_hf
    from ssdsl.model.load.spec import read_spec
    from ssdsl.model.load.zoo import load_zoo

    source = Source("--model", spec)
    path, _, _ = spec.rpartition(":")
    if spec.startswith("hf:"):
        return load_hf(read_spec(source), seed, generator, meta)
    if spec.endswith(".py") or path.endswith(".py") or "/" in spec:
        return load_user(source, seed, generator, bool(meta), trains)
    return load_zoo(read_spec(source), seed, generator, meta)
