"""E0525: a batch of another size does not fit the flat parameters, which its program shares with training."""

from ssdsl.text.diagnostic import Diagnostic


class GradientsApart(Diagnostic):
    """With a batch of another size, the gradients of weights in one flat parameter are sums over different axes.

    A flat parameter holds weights whose gradients are sums over the same axes. If a batch has fewer samples than
    devices, each device computes the whole batch, so gradients are sums over fewer axes. But where the plan cuts other
    layers over the same axis by another dimension, their gradients are still sums over it.
    """

    code = "E0525"
    title = "the gradient of `{weight}` is {sum} here, and that of `{other}` is {other_sum}"
    note = "both are in one flat parameter, which is reduced as a whole"
    help = "give a batch with a sample for each device, or drop it: `drop_last=True`"
    weight: str
    partial: tuple[str, ...]
    other: str
    other_partial: tuple[str, ...]

    @property
    def sum(self) -> str:
        return f"a sum over {', '.join(self.partial)}" if self.partial else "whole"

    @property
    def other_sum(self) -> str:
        return f"a sum over {', '.join(self.other_partial)}" if self.other_partial else "whole"
