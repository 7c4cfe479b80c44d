"""What autograd keeps: for every operator, which of its tensors wait for its backward.

A row names them as PyTorch's `derivatives.yaml` does, inputs by their parameters and outputs as `result`. `x/y` is kept
if `y` requires a gradient: `mul` needs an operand for the gradient of the other one only. Where a kernel keeps what it
has made for its backward, or a copy, the row is a function (`saved_kernels.py`). A row may be that of one overload
(`max.dim`). The truth is a CPU's, without numbers that a call has from Python (the 3 of `x ** 3`).
"""

from collections.abc import Callable, Mapping

from ssdsl.model import saved_kernels as kernels
from ssdsl.model.graph import Graph, Operator
from ssdsl.model.kept import Reader, Saved
from ssdsl.model.storage import Storage
from ssdsl.text.diagnostic import InternalError

Row = str | Callable[[Reader], Saved]

NOTHING = """
    __and__ __or__ __xor__ _to_copy add all any argmax argmin argsort bernoulli bitwise_and bitwise_left_shift
    bitwise_not bitwise_or bitwise_right_shift bitwise_xor cat ceil count_nonzero cumsum deg2rad detach diagonal
    empty_like eq expand exponential fill flip floor floor_divide frac full_like ge gt heaviside isfinite isinf isnan
    isneginf isposinf le logical_and logical_not logical_or logical_xor lt ne neg normal_functional one_hot ones_like
    permute pixel_shuffle pixel_unshuffle rad2deg rand_like randn_like repeat reshape roll round rsub select
    select_scatter sign slice slice_scatter split split_with_sizes stack sub sum t transpose tril triu trunc unbind
    unfold uniform upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d
    upsample_nearest3d upsample_trilinear3d zeros_like
""".split()

SELF = """
    abs acos acosh adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d asin asinh atan atanh avg_pool1d
    avg_pool2d avg_pool3d celu cos cosh digamma elu erf erfc erfinv gelu glu hardsigmoid hardswish hardtanh leaky_relu
    lgamma log log10 log1p log2 logit mish nan_to_num nansum pow.Tensor_Scalar relu6 selu silu sin sinc sinh softplus
    square threshold var var_mean
""".split()

RESULT = "exp exp2 expm1 log_softmax reciprocal relu rsqrt sigmoid softmax sqrt tan tanh".split()

BOTH = "amax amin cumprod linalg_vector_norm logcumsumexp logsumexp max median min norm prod sgn std".split()

INDICES = "max.dim median.dim min.dim sort topk".split()

OPERANDS = "atan2 logaddexp logaddexp2 maximum minimum xlogy".split()

SAVED: dict[str, Row] = {
    **dict.fromkeys(NOTHING, ""),
    **dict.fromkeys(SELF, "self"),
    **dict.fromkeys(RESULT, "result"),
    **dict.fromkeys(BOTH, "self result"),
    **dict.fromkeys(INDICES, "result1"),
    **dict.fromkeys(OPERANDS, "self other"),
    # elementwise
    "mul": "other/self self/other",
    **dict.fromkeys(("div", "true_divide"), "other self/other"),
    **dict.fromkeys(("fmod", "remainder"), "self/other other/other"),
    "pow": "self exponent result",
    "copysign": "result self/self",
    "hypot": "result self/self other/other",
    "addcdiv": "tensor2 tensor1/tensor2",
    "addcmul": "tensor2/tensor1 tensor1/tensor2",
    "lerp": "weight self/weight end/weight",
    "clamp": "self min max",
    "clamp_min": "self min",
    "clamp_max": "self max",
    "where": "condition",
    "masked_fill": "mask",
    "_prelu_kernel": "self weight",
    "log_sigmoid": kernels.log_sigmoid,
    # losses
    **dict.fromkeys("mse_loss smooth_l1_loss huber_loss soft_margin_loss".split(), "self target"),
    **dict.fromkeys(("binary_cross_entropy", "binary_cross_entropy_with_logits"), "self target weight pos_weight"),
    "l1_loss": kernels.l1_loss,
    "kl_div": kernels.kl_div,
    "cross_entropy_loss": kernels.cross_entropy,
    "nll_loss_nd": kernels.nll_loss,
    # contractions
    "linear": kernels.composite("weight/input input/weight"),
    "addmm": "mat2/mat1 mat1/mat2",
    "addmv": "vec/mat mat/vec",
    "baddbmm": "batch2/batch1 batch1/batch2",
    **dict.fromkeys(("mm", "bmm"), "mat2/self self/mat2"),
    "dot": "tensor/self self/tensor",
    "mv": "vec/self self/vec",
    "outer": "vec2/self self/vec2",
    "bilinear": "input1/input2 input1/weight input2/input1 input2/weight weight/input1 weight/input2",
    "matmul": kernels.composite("other/self self/other"),
    "einsum": kernels.einsum,
    "scaled_dot_product_attention": kernels.attention,
    # tables
    "embedding": kernels.embedding,
    "index": "indices",
    "index_select": "index",
    "index_fill": "index",
    "gather": "self index",
    "index_add": "index/source source/source",
    "index_copy": "index source/source",
    "scatter": "index",
    "scatter_add": "index/src",
    "scatter_reduce": "self index src result",
    # normalisation
    "layer_norm": kernels.layer_norm,
    "rms_norm": kernels.rms_norm,
    "group_norm": kernels.group_norm,
    "instance_norm": kernels.instance_norm,
    "batch_norm": kernels.batch_norm,
    # images
    **dict.fromkeys("conv1d conv2d conv3d".split(), "input weight"),
    **dict.fromkeys("conv_transpose1d conv_transpose2d conv_transpose3d".split(), "input weight"),
    **dict.fromkeys("max_pool1d max_pool2d max_pool3d".split(), kernels.max_pool),
    **dict.fromkeys(
        "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d max_pool2d_with_indices".split(), "self result1"
    ),
    # the rest
    **dict.fromkeys(("cummax", "cummin"), "self result1"),
    "std_mean": "self result0",
    "pad": kernels.pad,
    # random: what dropout is captured as, and runs as on a GPU; uncaptured, a CPU keeps factors in the operand's dtype
    "native_dropout": "result1",
}


def saved(
    operator: Operator, graph: Graph, places: Mapping[str, Storage], split: frozenset[int] = frozenset()
) -> Saved:
    """What autograd keeps of a call until its backward has run; nothing where no gradient flows.

    `places` is what `storages` found. `split` are the dimensions that are split over devices: a split vocabulary or
    batch of a norm may run another kernel, which keeps other things. Weights are named like any operand.
    """
    if not any(graph.values[o.value].differentiable for o in operator.outputs):
        return Saved()
    overload = str(operator.args[0]).split(".", 1)[1]
    row = SAVED.get(overload, SAVED.get(operator.kind))
    if row is None:
        raise InternalError(f"the table of what autograd keeps has no row for `{operator.kind}`")
    reader = Reader(operator, graph, places, split)
    return reader.named(row) if isinstance(row, str) else row(reader)
