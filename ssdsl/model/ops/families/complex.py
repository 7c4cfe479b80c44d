"""The rows of complex numbers and Fourier transforms: pairs of numbers, and transformed axes, cannot be split."""

from ssdsl.model.ops.families.elementwise import elementwise
from ssdsl.model.ops.families.scan import along
from ssdsl.model.ops.op import Op

OPS = (
    Op("aten::view_as_real", "... -> ... pair!", regroups=True),
    Op("aten::view_as_complex", "... pair! -> ...", regroups=True),
    Op("aten::complex", elementwise, linear_in=("real imag",)),
    *(
        Op(f"aten::_fft_{kind}", along(lambda call: call.argument("dim")), linear_in=("self",))
        for kind in ("r2c", "c2c", "c2r")
    ),
)
