"""The models that ssdsl knows by name, each a row in `ZOO`: those of transformers, and those of `examples/models`.

A file of `examples/models` is a module of this package, and a model by its name: `FAMILY`, whose sizes name classes of
`nets`. The rows need neither torch nor transformers, so that they can be listed without loading them.
"""

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from ssdsl.lang.assets import assets_folder
from ssdsl.model.zoo import architectures as hf
from ssdsl.model.zoo.family import ModelFamily

EXAMPLES = assets_folder("examples") / "models"
__path__.append(str(EXAMPLES))
ZOO: Mapping[str, ModelFamily] = {
    "gpt": ModelFamily("GPT-2's architecture, next-token loss", hf.GPT_SIZES, ("tiny", "small")),
    "llama": ModelFamily("Llama's architecture, next-token loss", hf.LLAMA_SIZES),
    "mixtral": ModelFamily("Mixtral, a mixture of experts without a capacity, next-token loss", hf.MIXTRAL_SIZES),
    "bert": ModelFamily("BERT's architecture, masked-word loss", hf.BERT_SIZES),
    "vit": ModelFamily("Vision Transformer, image classification", hf.VIT_SIZES),
    "swin": ModelFamily("Swin Transformer, image classification", hf.SWIN_SIZES, ("tiny", "small")),
    "mbart": ModelFamily("mBART's architecture, a target from a source", hf.MBART_SIZES),
    "t5": ModelFamily("T5's architecture, a target from a source", hf.T5_SIZES),
    **{file.stem: import_module(f"{__name__}.{file.stem}").FAMILY for file in sorted(EXAMPLES.glob("*.py"))},
}


def _counted(folder: Path) -> dict[str, int]:
    file = folder / "parameters.json"
    return json.loads(file.read_text("utf-8")) if file.is_file() else {}


# The numbers of parameters of all sizes, by `NAME:SIZE`: `pytest tests/model/test_zoo.py --update-golden` counts them.
PARAMETERS: Mapping[str, int] = _counted(Path(__file__).parent) | _counted(EXAMPLES)
