"""The models that ssdsl knows by name: one file each, a row in `ZOO`.

The rows need neither torch nor transformers, so that they can be listed without loading them.
"""

from collections.abc import Mapping
from dataclasses import Field, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from ssdsl.model.zoo import alphafold2, cosmoflow, gpt, llama, mbart, mixtral, moe_gpt, resnet, swin, t5, unet3d, vgg

if TYPE_CHECKING:
    from ssdsl.model.source import Model
    from ssdsl.runtime.bits import Generator


class Size(Protocol):
    """The numbers of a model: a frozen dataclass, whose fields are what `--model NAME:SIZE,field=value` may change."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def batch(self) -> int: ...

    def problem(self) -> str:
        """Why no model can be built from these numbers, or nothing."""
        ...

    def parameters(self) -> int:
        """How many numbers the model learns."""
        ...

    def describe(self) -> str:
        """The numbers that matter, for a table."""
        ...

    def build(self, name: str, seed: int, generator: "Generator", meta: bool) -> "Model":
        """The model, on the meta device with recipes if asked; may need transformers."""
        ...


@dataclass(frozen=True, slots=True)
class Family:
    """A model's named sizes; those in `laptop` train on a CPU in seconds, the others are built on the meta device."""

    about: str
    sizes: Mapping[str, Size]
    laptop: tuple[str, ...]

    @property
    def default(self) -> str:
        return next(iter(self.sizes))


ZOO: Mapping[str, Family] = {
    "gpt": Family(gpt.ABOUT, gpt.SIZES, gpt.LAPTOP),
    "llama": Family(llama.ABOUT, llama.SIZES, llama.LAPTOP),
    "mixtral": Family(mixtral.ABOUT, mixtral.SIZES, mixtral.LAPTOP),
    "moe_gpt": Family(moe_gpt.ABOUT, moe_gpt.SIZES, moe_gpt.LAPTOP),
    "swin": Family(swin.ABOUT, swin.SIZES, swin.LAPTOP),
    "mbart": Family(mbart.ABOUT, mbart.SIZES, mbart.LAPTOP),
    "t5": Family(t5.ABOUT, t5.SIZES, t5.LAPTOP),
    "alphafold2": Family(alphafold2.ABOUT, alphafold2.SIZES, alphafold2.LAPTOP),
    "vgg": Family(vgg.ABOUT, vgg.SIZES, vgg.LAPTOP),
    "resnet": Family(resnet.ABOUT, resnet.SIZES, resnet.LAPTOP),
    "unet3d": Family(unet3d.ABOUT, unet3d.SIZES, unet3d.LAPTOP),
    "cosmoflow": Family(cosmoflow.ABOUT, cosmoflow.SIZES, cosmoflow.LAPTOP),
}
