"""The kernels that a user asks for in one word: `eager`, `compiled`, `compiled:max-autotune` with a mode of torch, or,
in simulations, `fused`.

A mode says how torch.compile makes kernels, never what they compute. So no program knows of it: it is told to the ranks
that run one.
"""

from typing import TYPE_CHECKING

from ssdsl.record import Record

if TYPE_CHECKING:
    from ssdsl.ir.program import Kernels

DEFAULT = "default"  # torch's own word


class WrongKernels(ValueError):
    """A word that names no kernels: the reason, and what to write."""

    def __init__(self, reason: str, change: str) -> None:
        super().__init__(f"{reason}: {change}")
        self.reason, self.change = reason, change


class KernelChoice(Record):
    """Kernels by their word, and the mode in which torch compiles them."""

    word: str
    mode: str = DEFAULT

    def __str__(self) -> str:
        return self.word if self.mode == DEFAULT else f"{self.word}:{self.mode}"

    @property
    def kernels(self) -> "Kernels":
        """The kernels of a program."""
        from ssdsl.ir.program import Kernels

        return Kernels(self.word)


EAGER = KernelChoice("eager")


def runnable(chosen: KernelChoice) -> KernelChoice:
    """The kernels, if programs can have them. Raises WrongKernels."""
    if chosen.word == "fused":
        raise WrongKernels(
            "kernels `fused` are another framework's, and are simulated only", "give 'eager' or 'compiled'"
        )
    return chosen


def kernel_choice(asked: str | KernelChoice) -> KernelChoice:
    """The kernels that are asked for. Raises WrongKernels. Loads torch only where a mode is asked for.

    >>> kernel_choice("compiled")
    KernelChoice(word='compiled', mode='default')
    """
    from ssdsl.ir.program import Kernels

    word, colon, mode = str(asked).partition(":")
    if word not in (kernels.value for kernels in Kernels):
        raise WrongKernels(
            f"there are no kernels `{word}`", "they are 'eager' or 'compiled', and 'fused' in simulations"
        )
    if not colon:
        return KernelChoice(word)
    if word != Kernels.COMPILED.value:
        raise WrongKernels(f"kernels `{word}` have no modes", f"torch.compile has: write `compiled:{mode}`")
    from ssdsl.runtime.kernels.compiled import modes  # which loads torch's compiler

    if mode not in (known := modes()):
        raise WrongKernels(f"torch.compile has no mode `{mode}`", f"it is one of {', '.join(known)}")
    return KernelChoice(word, mode)
