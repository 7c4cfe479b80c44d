"""The rows of sums of products: matrix products, einsum and the like. Convolutions are in `image.py`."""

from typing import Any

from ssdsl.model.dims.signature import ONE, Axis, Misfit, Signature, axes, free, signature, whole
from ssdsl.model.ops.families.elementwise import broadcast
from ssdsl.model.ops.op import Op, Rule
from ssdsl.model.ops.reader import TypedCall


def _added(rows: str, left: str, right: str) -> Rule:
    """The rule of a product of `left` and `right` with an addend that broadcasts to it."""
    product, a, b = ([free(n) for n in names.split()] for names in (rows, left, right))

    def rule(call: TypedCall) -> Signature:
        addend, out = call.shape, call.result
        shift = len(product) - len(addend)
        if shift < 0:
            raise Misfit(f"an addend {list(addend)} for {list(out)}")
        pairs = zip(addend, product[shift:], out[shift:], strict=True)
        return signature([[ONE if n == 1 != m else axis for n, axis, m in pairs], a, b], [product], addends=(0,))

    return rule


def matmul(call: TypedCall) -> Signature:
    """Batched matrix product with broadcasting, after `torch.matmul`."""
    a, b = call.shapes
    out = call.result
    left = [free("k")] if len(a) == 1 else [free("n"), free("k")]
    right = [free("k")] if len(b) == 1 else [free("k"), free("out")]
    rows = [free("n")] * (len(a) > 1) + [free("out")] * (len(b) > 1)
    batch = out[: len(out) - len(rows)]
    heads = [broadcast(s[:-2] if len(s) > 2 else (), batch) for s in (a, b)]
    return signature([[*heads[0], *left], [*heads[1], *right]], [[*axes(len(batch)), *rows]])


def cdist(call: TypedCall) -> Signature:
    """Distances between all rows of two matrices, for each pair of matrices of two batches."""
    batch = call.result[:-2]
    left, right = (broadcast(s[:-2], batch) for s in call.shapes)
    rows = [[*left, free("n"), whole("inside")], [*right, free("m"), whole("inside")]]
    return signature(rows, [[*axes(len(batch)), free("n"), free("m")]])


def einsum(call: TypedCall) -> Signature:
    """The equation is the signature; a letter that one operand has twice is a diagonal, and cannot be split."""
    left, right = equation_of(call.args[0].replace(" ", ""))
    operands = [list(o.replace("...", ".")) for o in left.split(",")]
    sized = [_sized(letters, shape) for letters, shape in zip(operands, call.shapes, strict=True)]
    sizes: dict[str, int] = {}
    for letter, n in (pair for pairs in sized for pair in pairs):
        sizes[letter] = max(n, sizes.get(letter, 1))
    diagonal = {c for o in operands for c in o if o.count(c) > 1}
    marked = {c: whole(c) if c in diagonal else free(c) for c in sizes}

    def axis(letter: str, own: dict[str, int]) -> Axis | None:
        return None if letter == "." else ONE if own[letter] != sizes[letter] else marked[letter]

    given = [[axis(c, dict(own)) for c in letters] for letters, own in zip(operands, sized, strict=True)]
    return signature(given, [[marked.get(c) for c in right.replace("...", ".")]])


def equation_of(text: str) -> tuple[str, str]:
    """Both sides; without an arrow the right one has the letters that occur once, in alphabetical order."""
    left, arrow, right = text.partition("->")
    if not arrow:
        once = sorted(c for c in set(left) - {",", "."} if left.count(c) == 1)
        right = ("..." if "..." in left else "") + "".join(once)
    return left, right


def _sized(letters: list[str], shape: tuple[int, ...]) -> list[tuple[str, int]]:
    """The letters of an einsum operand with the sizes of their axes; `.` stands for the axes that are left."""
    at = letters.index(".") if "." in letters else len(letters)
    after = len(letters) - at - 1
    pairs = list(zip(letters[:at], shape, strict=False))
    return pairs + (list(zip(letters[at + 1 :], shape[len(shape) - after :], strict=True)) if after > 0 else [])


def _op(kind: str, dims: str | Rule, **more: Any) -> Op:
    """Contractions keep their inputs for backward, not their output."""
    return Op(f"aten::{kind}", dims, **{"contraction": True, "fresh": True, **more})


OPS = (
    _op("linear", "... in, out in, out+? -> ... out", text="F.linear", projects=True),
    _op("addmm", _added("n out", "n k", "k out"), text="torch.addmm", projects=True),
    _op("addmv", _added("n", "n k", "k")),
    _op("baddbmm", _added("b n out", "b n k", "b k out")),
    _op("mm", "n k, k out -> n out", projects=True),
    _op("bmm", "b n k, b k out -> b n out", text="torch.bmm"),
    _op("dot", "k, k -> _", linear_in=("self", "tensor")),
    _op("mv", "n k, k -> n"),
    _op("outer", "n, k -> n k", fresh=False),
    _op("vdot", "k, k -> _"),
    _op("_cdist_forward", cdist, fresh=False),
    _op("matmul", matmul, linear_in=("self", "other"), text="torch.matmul", projects=True),
    # may return a view of an input
    _op("einsum", einsum, factors=None, text="torch.einsum", fresh=False, projects=True),
    _op("bilinear", "... in0, ... in1, out in0 in1, out+? -> ... out", factors=3),
)
