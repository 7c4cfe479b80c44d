"""The models that ssdsl knows by name, each a row in `ZOO`: those of transformers, and our own, one file each.

The rows need neither torch nor transformers, so that they can be listed without loading them.
"""

from collections.abc import Mapping

from ssdsl.model.zoo import alphafold2, argus, cosmoflow, ga_planes, moe_gpt, resnet, u_transformer, unet3d, vgg
from ssdsl.model.zoo.architectures import FAMILIES
from ssdsl.model.zoo.family import ModelFamily

ZOO: Mapping[str, ModelFamily] = {
    "gpt": FAMILIES["gpt"],
    "llama": FAMILIES["llama"],
    "mixtral": FAMILIES["mixtral"],
    "moe_gpt": ModelFamily(moe_gpt.ABOUT, moe_gpt.SIZES, moe_gpt.LAPTOP),
    "bert": FAMILIES["bert"],
    "vit": FAMILIES["vit"],
    "swin": FAMILIES["swin"],
    "mbart": FAMILIES["mbart"],
    "t5": FAMILIES["t5"],
    "alphafold2": ModelFamily(alphafold2.ABOUT, alphafold2.SIZES, alphafold2.LAPTOP),
    "vgg": ModelFamily(vgg.ABOUT, vgg.SIZES, vgg.LAPTOP),
    "resnet": ModelFamily(resnet.ABOUT, resnet.SIZES, resnet.LAPTOP),
    "wide_resnet": ModelFamily(resnet.ABOUT_WIDE, resnet.WIDE, resnet.LAPTOP),
    "unet3d": ModelFamily(unet3d.ABOUT, unet3d.SIZES, unet3d.LAPTOP),
    "u_transformer": ModelFamily(u_transformer.ABOUT, u_transformer.SIZES, u_transformer.LAPTOP),
    "cosmoflow": ModelFamily(cosmoflow.ABOUT, cosmoflow.SIZES, cosmoflow.LAPTOP),
    "argus": ModelFamily(argus.ABOUT, argus.SIZES, argus.LAPTOP),
    "ga_planes": ModelFamily(ga_planes.ABOUT, ga_planes.SIZES, ga_planes.LAPTOP),
}
