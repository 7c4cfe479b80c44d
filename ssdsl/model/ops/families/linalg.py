"""The rows of decompositions of matrices: the batch of matrices may be split, the matrices may not. A triangular
system's right sides may be split too."""

from ssdsl.model.dims.signature import Axis, Misfit, Signature, axes, parse_signature, signature, whole_axes
from ssdsl.model.ops.op import Op
from ssdsl.model.ops.reader import Shape, TypedCall


def matrices(call: TypedCall) -> Signature:
    """The axes in front of the first operand's last two are a batch, which every tensor has."""
    batch = call.shape[:-2]

    def row(shape: Shape, word: str) -> list[Axis]:
        if shape[: len(batch)] != batch:
            raise Misfit(f"{list(shape)} lacks the batch {list(batch)}")
        return [*axes(len(batch)), *whole_axes(len(shape) - len(batch), word)]

    given = [row(s, f"a{i}_") for i, s in enumerate(call.shapes)]
    return signature(given, [row(t.shape, f"b{i}_") for i, t in enumerate(call.outputs)])


def triangular(call: TypedCall) -> Signature:
    """The right sides of a system, columns or with `left=False` rows, are solved each by itself."""
    left = call.argument("left")
    return parse_signature("... i! j!, ... i! of -> ... j! of" if left else "... i! j!, ... of j! -> ... of i!")


KINDS = """
    linalg_inv_ex linalg_cholesky_ex linalg_lu_factor_ex linalg_qr linalg_matrix_exp _linalg_solve_ex _linalg_eigh
    _linalg_svd _linalg_det _linalg_slogdet linalg_lu_solve linalg_householder_product cholesky_inverse
"""

OPS = (
    *(Op(f"aten::{kind}", matrices) for kind in KINDS.split()),
    Op("aten::linalg_solve_triangular", triangular, linear_in=("B",)),
)
