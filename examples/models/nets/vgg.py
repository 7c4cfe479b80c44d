"""VGG: stages of 3 x 3 convolutions, each with a max pooling at its end, then three fully connected layers."""

import torch
from torch import nn
from torch.nn import functional as F

from ssdsl.model.zoo.nets.inputs import classified_images
from ssdsl.model.zoo.vgg import Vgg


class VggNet(nn.Module):
    """Returns the mean cross-entropy; `size` has the number and the width of the convolutions of each stage."""

    example = staticmethod(classified_images)

    def __init__(self, size: Vgg) -> None:
        super().__init__()
        self.features = nn.Sequential(*_stages(size))
        layers = [nn.Linear(size.flat, size.hidden), nn.Linear(size.hidden, size.hidden)]
        drops = [(layer, nn.ReLU(), nn.Dropout(size.dropout)) for layer in layers]
        self.classifier = nn.Sequential(*drops[0], *drops[1], nn.Linear(size.hidden, size.classes))

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        features = self.features(pixel_values).flatten(1)
        return F.cross_entropy(self.classifier(features), labels)


def _stages(size: Vgg) -> list[nn.Module]:
    """The layers of all stages: convolutions with ReLU, and the poolings inserted behind those of each stage."""
    layers: list[nn.Module] = []
    for given, made in size.channels():
        layers += [nn.Conv2d(given, made, 3, padding=1), nn.ReLU()]
    at = 0
    for count in size.depths:
        at += 2 * count + 1
        layers.insert(at - 1, nn.MaxPool2d(2))
    return layers
