"""Wide-ResNet as in Alpa (Zheng et al. 2022, arXiv 2201.12023, and `benchmark/alpa/suite_wresnet.py` of its code).

Only the 3 x 3 convolution of a block is wider, by `factor`; there are 1024 classes and 1536 images. Sizes have the
names of Alpa's table. The layers have 0.254, 0.495, 1.006, 1.965, 4.001, 6.728 (named 6.8b) and 12.633 billion
parameters.
"""

from ssdsl.model.zoo.family import ModelFamily
from ssdsl.model.zoo.resnet import DEPTHS, Resnet


def _wide(layers: str, width: int, factor: int) -> Resnet:
    return Resnet(DEPTHS[layers], width, image=224, classes=1024, batch=1536, block="bottleneck", factor=factor)


SIZES = {
    "tiny": Resnet((1, 1), width=8, image=32, classes=16, batch=8, block="bottleneck", factor=2),
    "250m": _wide("50", 160, 2),
    "500m": _wide("50", 224, 2),
    "1b": _wide("50", 320, 2),
    "2b": _wide("50", 448, 2),
    "4b": _wide("50", 640, 2),
    "6.8b": _wide("50", 320, 16),
    "13b": _wide("101", 320, 16),
}
FAMILY = ModelFamily("Wide-ResNet, image classification", SIZES)
