"""The models that ssdsl knows by name, each a row in `ZOO`: those of transformers, and our own, one file each.

The rows need neither torch nor transformers, so that they can be listed without loading them.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from ssdsl.model.zoo import alphafold2, argus, cosmoflow, ga_planes, moe_gpt, resnet, u_transformer, unet3d, vgg
from ssdsl.model.zoo import architectures as hf
from ssdsl.model.zoo.family import ModelFamily

ZOO: Mapping[str, ModelFamily] = {
    "gpt": ModelFamily("GPT-2's architecture, next-token loss", hf.GPT_SIZES, ("tiny", "small")),
    "llama": ModelFamily("Llama's architecture, next-token loss", hf.LLAMA_SIZES),
    "mixtral": ModelFamily("Mixtral, a mixture of experts without a capacity, next-token loss", hf.MIXTRAL_SIZES),
    "moe_gpt": moe_gpt.FAMILY,
    "bert": ModelFamily("BERT's architecture, masked-word loss", hf.BERT_SIZES),
    "vit": ModelFamily("Vision Transformer, image classification", hf.VIT_SIZES),
    "swin": ModelFamily("Swin Transformer, image classification", hf.SWIN_SIZES, ("tiny", "small")),
    "mbart": ModelFamily("mBART's architecture, a target from a source", hf.MBART_SIZES),
    "t5": ModelFamily("T5's architecture, a target from a source", hf.T5_SIZES),
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
