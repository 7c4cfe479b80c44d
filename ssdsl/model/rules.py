"""The rule table: for every operator, which axes of its tensors are the same dimension (DESIGN section 3).

A row is a signature (`signature.py`) or, where the axes depend on the arguments, a function that writes one. The letters
`heads`, `head_dim`, `vocab` and `hidden` name the dimension that they meet.
"""

from collections.abc import Callable

from ssdsl.model import rule_shapes as shapes
from ssdsl.model.call import Call, Tensor

Tensors = dict[str, Tensor]
Rule = str | Callable[[Call, Tensors], str]

ELEMENTWISE = """
    abs add addcdiv addcmul bitwise_and bitwise_not bitwise_or bitwise_xor ceil celu clamp clamp_max clamp_min copysign
    cos cosh detach div elu eq erf erfc exp exp2 expm1 fill floor floor_divide fmod ge gelu glu_jvp gt hardsigmoid hardswish
    hardtanh isfinite isinf isnan le leaky_relu lerp log log10 log1p log2 log_sigmoid logaddexp logical_and logical_not
    logical_or logical_xor logit lt masked_fill maximum minimum mish mul nan_to_num ne neg ones_like full_like pow positive
    reciprocal relu relu6 remainder round rsqrt rsub selu sgn sigmoid sign silu sin sinh softplus softshrink softsign sqrt
    square sub tan tanh threshold to trunc where xlogy zeros_like __and__ __or__ __xor__ _to_copy clone contiguous true_divide
    prelu_kernel empty_like bitwise_left_shift bitwise_right_shift new_zeros_like isneginf isposinf erfinv digamma lgamma
""".split()

LOSSES = "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits".split()

RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, shapes.elementwise),
    **dict.fromkeys(LOSSES, shapes.elementwise_loss),
    # contractions
    "linear": "... in, out in, out+? -> ... out",
    "addmm": shapes.addmm,
    "mm": "n k, k out -> n out",
    "bmm": "b n k, b k out -> b n out",
    "baddbmm": "b n out+, b n k, b k out -> b n out",
    "dot": "k, k -> _",
    "mv": "n k, k -> n",
    "outer": "n, k -> n k",
    "matmul": shapes.matmul,
    "einsum": shapes.einsum,
    "bilinear": "... in0, ... in1, out in0 in1, out+? -> ... out",
    # attention
    "scaled_dot_product_attention": shapes.attention,
    "softmax": shapes.softmax,
    "_softmax": shapes.softmax,
    "log_softmax": shapes.softmax,
    "_log_softmax": shapes.softmax,
    # tables and losses
    "embedding": "vocab hidden, ... -> ... hidden",
    "cross_entropy_loss": shapes.cross_entropy,
    "nll_loss": "n vocab!, n, vocab!? -> _",
    "index": shapes.index,
    "index_select": shapes.index_select,
    "gather": shapes.gather,
    "one_hot": "... -> ... classes!",
    # normalisation
    "layer_norm": shapes.layer_norm,
    "rms_norm": shapes.layer_norm,
    "group_norm": shapes.group_norm,
    "instance_norm": shapes.group_norm,
    "batch_norm": shapes.batch_norm,
    # images
    "conv1d": shapes.convolution,
    "conv2d": shapes.convolution,
    "conv3d": shapes.convolution,
    **dict.fromkeys(
        "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
        "upsample_nearest2d upsample_bilinear2d upsample_nearest1d upsample_bicubic2d".split(),
        shapes.spatial,
    ),
    # reductions
    "sum": shapes.reduce_sum,
    **dict.fromkeys(
        "amax amin max min argmax argmin prod any all var std norm linalg_vector_norm logsumexp median".split(),
        shapes.reduce_whole,
    ),
    **dict.fromkeys("cumsum cumprod sort topk flip roll tril triu diff logcumsumexp argsort".split(), shapes.along),
    # regrouping and moving data
    "transpose": shapes.transpose,
    "permute": shapes.permute,
    "t": "a b -> b a",
    "expand": shapes.expand,
    "expand_as": shapes.expand,
    "select": shapes.select,
    "slice": shapes.along,
    "narrow": shapes.along,
    "pad": shapes.resize,
    "constant_pad_nd": shapes.resize,
    "repeat": shapes.resize,
    "cat": shapes.cat,
    "stack": shapes.stack,
    "split": shapes.split,
    "split_with_sizes": shapes.split,
    "chunk": shapes.split,
    "unbind": shapes.unbind,
}

RANDOM = frozenset(
    "dropout native_dropout alpha_dropout feature_dropout bernoulli rand randn rand_like randn_like randint "
    "randperm normal multinomial rrelu uniform exponential".split()
)

CONTRACTIONS = frozenset(
    "linear addmm mm bmm baddbmm dot mv outer matmul einsum bilinear conv1d conv2d conv3d scaled_dot_product_attention".split()
)


def rule_text(call: Call, tensors: Tensors) -> str | None:
    """The signature of a call, or None when the table has no row for it."""
    rule = RULES.get(call.kind)
    return rule(call, tensors) if callable(rule) else rule
