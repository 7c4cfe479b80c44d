"""The models that ssdsl knows by name, each a row in `ZOO`: those of transformers, and our own, one file each.

The rows need neither torch nor transformers, so that they can be listed without loading them.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from ssdsl.model.zoo import alphafold2, argus, cosmoflow, ga_planes, moe_gpt, resnet, u_transformer, unet3d, vgg
from ssdsl.model.zoo.architectures import FAMILIES
from ssdsl.model.zoo.family import ModelFamily

ZOO: Mapping[str, ModelFamily] = {
    "gpt": FAMILIES["gpt"],
    "llama": FAMILIES["llama"],
    "mixtral": FAMILIES["mixtral"],
    "moe_gpt": moe_gpt.FAMILY,
    "bert": FAMILIES["bert"],
    "vit": FAMILIES["vit"],
    "swin": FAMILIES["swin"],
    "mbart": FAMILIES["mbart"],
    "t5": FAMILIES["t5"],
    "alphafold2": alphafold2.FAMILY,
    "vgg": vgg.FAMILY,
    "resnet": resnet.FAMILY,
    "wide_resnet": resnet.WIDE_FAMILY,
    "unet3d": unet3d.FAMILY,
    "u_transformer": u_transformer.FAMILY,
    "cosmoflow": cosmoflow.FAMILY,
    "argus": argus.FAMILY,
    "ga_planes": ga_planes.FAMILY,
}
# The numbers of parameters of all sizes, by `NAME:SIZE`: `pytest tests/model/test_zoo.py --update-golden` counts them.
PARAMETERS: Mapping[str, int] = json.loads((Path(__file__).parent / "parameters.json").read_text("utf-8"))
