"""The rule table: for every operator, which axes of its tensors are the same dimension.

A row is a signature (`signature.py`) or, where the axes depend on the arguments, a function that writes one. The
letters `heads`, `head_dim`, `vocab` and `hidden` name the dimension that they meet.
"""

from collections.abc import Callable

from ssdsl.model import rule_shapes as shapes
from ssdsl.model.call import Call, Tensor

Tensors = dict[str, Tensor]
Rule = str | Callable[[Call, Tensors], str | None]

ELEMENTWISE = """
    abs acos acosh add addcdiv addcmul asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not
    bitwise_or bitwise_right_shift bitwise_xor ceil celu clamp clamp_max clamp_min copysign cos cosh deg2rad detach
    digamma div elu empty_like eq erf erfc erfinv exp exp2 expm1 fill floor floor_divide fmod frac full_like ge gelu
    gt hardsigmoid hardswish hardtanh heaviside hypot isfinite isinf isnan isneginf isposinf le leaky_relu lerp
    lgamma log log10 log1p log2 log_sigmoid logaddexp logaddexp2 logical_and logical_not logical_or logical_xor
    logit lt masked_fill maximum minimum mish mul nan_to_num ne neg ones_like pow rad2deg reciprocal relu relu6
    remainder round rsqrt rsub selu sgn sigmoid sign silu sin sinc sinh softplus sqrt square sub tan tanh threshold
    true_divide trunc where xlogy zeros_like __and__ __or__ __xor__ _prelu_kernel _to_copy
""".split()

NOISE = "bernoulli exponential native_dropout normal_functional rand_like randn_like uniform".split()

LOSSES = """
    mse_loss l1_loss smooth_l1_loss huber_loss soft_margin_loss kl_div binary_cross_entropy
    binary_cross_entropy_with_logits
""".split()

RULES: dict[str, Rule] = {
    **dict.fromkeys([*ELEMENTWISE, *NOISE], shapes.elementwise),
    **dict.fromkeys(LOSSES, shapes.elementwise_loss),
    # contractions
    "linear": "... in, out in, out+? -> ... out",
    "addmm": shapes.addmm,
    "addmv": shapes.addmm,
    "mm": "n k, k out -> n out",
    "bmm": "b n k, b k out -> b n out",
    "baddbmm": shapes.addmm,
    "dot": "k, k -> _",
    "mv": "n k, k -> n",
    "outer": "n, k -> n k",
    "matmul": shapes.matmul,
    "einsum": shapes.einsum,
    "bilinear": "... in0, ... in1, out in0 in1, out+? -> ... out",
    # attention
    "scaled_dot_product_attention": shapes.attention,
    "softmax": shapes.softmax,
    "log_softmax": shapes.softmax,
    # tables and losses
    "embedding": shapes.embedding,
    "cross_entropy_loss": shapes.cross_entropy,
    "nll_loss_nd": shapes.cross_entropy,
    "index": shapes.index,
    "index_select": shapes.index_select,
    "gather": shapes.gather,
    "one_hot": "... -> ... classes!",
    **dict.fromkeys("scatter scatter_add scatter_reduce index_add index_fill index_copy".split(), shapes.scatter),
    **dict.fromkeys("select_scatter slice_scatter".split(), shapes.scatter),
    # normalisation
    "layer_norm": shapes.layer_norm,
    "rms_norm": shapes.layer_norm,
    "group_norm": shapes.group_norm,
    "instance_norm": shapes.group_norm,
    "batch_norm": shapes.batch_norm,
    # images
    **dict.fromkeys("conv1d conv2d conv3d".split(), shapes.convolution),
    **dict.fromkeys("conv_transpose1d conv_transpose2d conv_transpose3d".split(), shapes.transposed_convolution),
    **dict.fromkeys(
        "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
        "adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d max_pool2d_with_indices "
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d "
        "upsample_trilinear3d upsample_bicubic2d".split(),
        shapes.spatial,
    ),
    "pixel_shuffle": shapes.pixel_shuffle,
    "pixel_unshuffle": shapes.pixel_unshuffle,
    # reductions
    "sum": shapes.reduce_sum,
    **dict.fromkeys(
        "amax amin max min argmax argmin prod any all var std var_mean std_mean linalg_vector_norm norm logsumexp "
        "median nansum count_nonzero".split(),
        shapes.reduce_whole,
    ),
    **dict.fromkeys("cumsum cumprod cummax cummin logcumsumexp sort argsort topk".split(), shapes.along),
    # regrouping and moving data
    "transpose": shapes.transpose,
    "permute": shapes.permute,
    "t": shapes.transpose,
    "expand": shapes.expand,
    "select": shapes.select,
    **dict.fromkeys("slice flip roll tril triu".split(), shapes.along),
    "pad": shapes.pad,
    "repeat": shapes.repeat,
    "diagonal": shapes.diagonal,
    "unfold": shapes.unfold,
    "cat": shapes.cat,
    "stack": shapes.stack,
    "split": shapes.split,
    "split_with_sizes": shapes.split,
    "unbind": shapes.unbind,
    "glu": shapes.glu,
}

REGROUPINGS = "view _unsafe_view reshape flatten unflatten squeeze unsqueeze".split()  # all become `reshape`

RANDOM = frozenset(
    """
    dropout native_dropout alpha_dropout feature_dropout feature_alpha_dropout bernoulli rand randn rand_like randn_like
    randint randint_like randperm normal normal_functional multinomial rrelu rrelu_with_noise uniform exponential cauchy
    geometric log_normal random poisson binomial
    """.split()
)

CONTRACTIONS = frozenset(
    """
    linear addmm addmv mm bmm baddbmm dot mv outer matmul einsum bilinear conv1d conv2d conv3d conv_transpose1d
    conv_transpose2d conv_transpose3d scaled_dot_product_attention
    """.split()
)


def rule_text(call: Call, tensors: Tensors) -> str | None:
    """The signature of a call, or None when the table has no row for it."""
    rule = RULES.get(call.kind)
    return rule(call, tensors) if callable(rule) else rule


def is_random(call: Call) -> bool:
    """Whether a call draws random numbers, of itself or because of a probability."""
    return call.kind in RANDOM or bool(call.argument("dropout_p"))
