"""The rows of decompositions of matrices: the batch of matrices may be split, the matrices may not."""

from ssdsl.model.dims.signature import Axis, Misfit, Signature, axes, signature, whole_axes
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


KINDS = "linalg_inv_ex linalg_cholesky_ex _linalg_eigh linalg_qr linalg_matrix_exp linalg_solve_triangular"

OPS = tuple(Op(f"aten::{kind}", matrices) for kind in KINDS.split())
