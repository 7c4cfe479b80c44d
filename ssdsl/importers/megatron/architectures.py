"""The models of the zoo and of transformers that flags of Megatron may describe, and what each of them has.

A row is a model. What it has stands by feature, the value that it has first; a feature that is not named has only its
first word in `FEATURES`. Numbers of the flags stand in braces in `options`; an option whose number is None is left out.
"""

from ssdsl.importers.widths import ATTENTION
from ssdsl.record import Record


class Feature(Record):
    """Something in which models differ. `values` are its words and what they mean, the usual one first; `flags` are
    those that say it, and `weight` is how much a model is unlike another that differs in it."""

    values: dict[str, str]
    flags: tuple[str, ...]
    weight: int


class DescribedModel(Record):
    """A model, by its name in `--model`. `layers`, `experts` and `behind` are paths as `Net` has them; the others
    select operators that are computed again, of all layers: `core` is attention without its products."""

    name: str
    has: dict[str, str]
    options: str
    layers: str = "layers.*"
    experts: str | None = None
    behind: str | None = "norm"
    norms: str = "layers.*.*layernorm"
    ffn: str = "layers.*.mlp"
    core: str = ATTENTION

    def values(self, feature: str) -> tuple[str, ...]:
        """The values of a feature that the model can have."""
        own = self.has.get(feature)
        return tuple(own.split()) if own is not None else (next(iter(FEATURES[feature].values)),)


FEATURES = {
    "attention": Feature(
        {
            "usual": "attention by heads",
            "latent": "keys and values from a latent vector (MLA)",
            "sinks": "a learned sink in each softmax",
            "window": "a window of attention",
        },
        ("multi-latent-attention", "softmax-type", "window-size", "window-attn-skip-freq"),
        60,
    ),
    "experts": Feature(
        {
            "none": "no experts",
            "all": "experts in each layer",
            "first": "experts in all but the first layers",
            "some": "experts in some layers",
        },
        ("num-experts", "moe-layer-freq", "expert-interval"),
        50,
    ),
    "act": Feature(
        {
            "gelu": "a feed-forward with GELU",
            "swiglu": "a gated feed-forward with SiLU",
            "relu2": "a feed-forward with squared ReLU",
            "geglu": "a gated feed-forward with GELU",
            "relu": "a feed-forward with ReLU",
            "clamped": "a gated feed-forward with a clamped sigmoid",
        },
        (
            "swiglu",
            "squared-relu",
            "openai-gelu",
            "quick-geglu",
            "activation-func-clamp-value",
            "glu-linear-offset",
            "onnx-safe",
        ),
        8,
    ),
    "position": Feature(
        {
            "learned": "learned positions",
            "rope": "rotary positions",
            "none": "no positions",
            "yarn": "rotary positions scaled by YaRN",
            "relative": "relative positions",
            "mrope": "rotary positions of images and text",
        },
        (
            "position-embedding-type",
            "use-rotary-position-embeddings",
            "no-position-embedding",
            "rope-type",
            "rotary-scaling-factor",
        ),
        8,
    ),
    "norm": Feature(
        {"LayerNorm": "LayerNorm", "RMSNorm": "RMSNorm", "LayerNorm1p": "LayerNorm with weights around zero"},
        ("normalization", "apply-layernorm-1p"),
        6,
    ),
    "keys": Feature(
        {"all": "keys for each head", "grouped": "heads that share keys"},
        ("group-query-attention", "num-query-groups", "num-key-value-heads"),
        10,
    ),
    "width": Feature(
        {"equal": "heads of hidden / heads", "free": "heads of another width"},
        ("kv-channels",),
        4,
    ),
    "shared": Feature(
        {
            "no": "no shared expert",
            "plain": "an expert for all tokens",
            "gated": "an expert for all tokens, with a gate",
        },
        ("moe-shared-expert-intermediate-size", "moe-shared-expert-gate", "mlp-type"),
        7,
    ),
    "router": Feature(
        {
            "softmax": "a softmax over the chosen experts",
            "presoftmax": "a softmax over all experts",
            "sigmoid": "a sigmoid for each expert, chosen with a bias",
        },
        (
            "moe-router-score-function",
            "moe-router-pre-softmax",
            "moe-router-enable-expert-bias",
            "moe-router-num-groups",
            "moe-router-group-topk",
            "moe-router-topk-scaling-factor",
        ),
        5,
    ),
    "bias": Feature(
        {"all": "biases", "none": "no biases", "qkv": "biases of queries, keys and values alone"},
        ("disable-bias-linear", "add-qkv-bias"),
        3,
    ),
    "head": Feature(
        {"tied": "one matrix for embedding and scores", "untied": "a matrix of its own for the scores"},
        ("untie-embeddings-and-output-weights",),
        3,
    ),
    "qk_norm": Feature(
        {"no": "no norms of queries and keys", "yes": "norms of queries and keys"}, ("qk-layernorm",), 4
    ),
    "rotary": Feature(
        {
            "whole": "rotary positions in all of a head",
            "half": "rotary positions in half of a head",
            "quarter": "rotary positions in a quarter of a head",
            "part": "rotary positions in a part of a head",
        },
        ("rotary-percent",),
        2,
    ),
    "scaling": Feature(
        {"no": "unscaled rotary positions", "llama3": "rotary positions scaled as in Llama 3.1"},
        ("use-rope-scaling", "rope-scaling-factor"),
        1,
    ),
    "dropout": Feature(
        {"none": "no dropout", "attention": "dropout in attention alone", "all": "dropout"},
        ("hidden-dropout", "attention-dropout"),
        1,
    ),
    "residual": Feature(
        {"before": "norms before each part", "after": "norms behind each part"},
        ("apply-residual-connection-post-layernorm",),
        2,
    ),
    "tokens": Feature(
        {"one": "one token predicted", "more": "further tokens predicted (MTP)"},
        ("mtp-num-layers",),
        1,
    ),
}

WORDS = "layers={layers} hidden={hidden} heads={heads}"
SIZES = "seq={seq} batch={batch} vocab={vocab}"
ROTARY = f"{WORDS} keys={{keys}} ffn={{ffn}} {SIZES} theta={{theta}}"
CONFIG = "num_hidden_layers={layers} hidden_size={hidden} num_attention_heads={heads}"
FFN = "intermediate_size={ffn}"
KEYS = "num_key_value_heads={keys}"
CONFIG_SIZES = (
    "max_position_embeddings={positions} vocab_size={vocab} tie_word_embeddings={is_tied} seq={seq} batch={batch}"
)
HF = f"{CONFIG} {KEYS} {FFN} {CONFIG_SIZES}"
EXPERT = "moe_intermediate_size={expert_ffn} num_experts_per_tok={top}"
SIGMOID = "n_shared_experts={shared} n_routed_experts={experts} n_group={groups} topk_group={group_top}"
SCALED = "routed_scaling_factor={router_scale} norm_topk_prob={is_normed} first_k_dense_replace={dense_layers}"
LATENT = (
    "q_lora_rank={query_rank} kv_lora_rank={key_rank} qk_nope_head_dim={query_width} qk_rope_head_dim={rotary_width} "
    "v_head_dim={value_width}"
)
BALANCE = "output_router_logits={has_balance} router_aux_loss_coef={balance}"
ATTENTION_DROPOUT = "attention_dropout={attention_dropout}"

MODELS = (
    DescribedModel(
        "gpt",
        {"act": "gelu relu2", "head": "tied untied", "dropout": "none attention all"},
        f"{WORDS} {SIZES} n_inner={{other_ffn}} activation_function={{other_act}} tie_word_embeddings={{if_untied}} "
        "dropout={dropout} attn_pdrop={if_attention_dropout} layer_norm_epsilon={other_epsilon}",
        "h.*",
        behind="ln_f",
        norms="h.*.ln_*",
        ffn="h.*.mlp",
    ),
    DescribedModel(
        "hf:opt",
        {"act": "gelu relu2 relu", "head": "tied untied", "bias": "all none", "dropout": "none attention all"},
        f"{CONFIG} word_embed_proj_dim={{hidden}} ffn_dim={{ffn}} activation_function={{act}} enable_bias={{has_bias}} "
        f"dropout={{hidden_dropout}} {ATTENTION_DROPOUT} {CONFIG_SIZES}",
        norms="layers.*.*layer_norm",
        ffn="layers.*.fc*",
        behind="final_layer_norm",
    ),
    DescribedModel(
        "llama",
        {
            "position": "rope",
            "norm": "RMSNorm",
            "act": "swiglu geglu",
            "bias": "none all",
            "head": "untied tied",
            "keys": "all grouped",
            "width": "equal free",
            "dropout": "none attention",
        },
        f"{ROTARY} head_dim={{other_width}} tie_word_embeddings={{if_tied}} attention_bias={{if_bias}} "
        "mlp_bias={if_bias} hidden_act={other_act} attention_dropout={if_attention_dropout} "
        "rms_norm_eps={other_epsilon}",
    ),
    DescribedModel(
        "hf:qwen2",
        {
            "position": "rope",
            "norm": "RMSNorm",
            "act": "swiglu geglu",
            "bias": "qkv",
            "head": "untied tied",
            "keys": "all grouped",
            "dropout": "none attention",
        },
        f"{HF} hidden_act={{other_act}} {ATTENTION_DROPOUT}",
    ),
    DescribedModel(
        "hf:qwen3",
        {
            "position": "rope",
            "norm": "RMSNorm",
            "act": "swiglu geglu",
            "bias": "none",
            "head": "untied tied",
            "keys": "all grouped",
            "width": "equal free",
            "qk_norm": "yes",
            "dropout": "none attention",
        },
        f"{HF} head_dim={{width}} hidden_act={{other_act}} {ATTENTION_DROPOUT}",
    ),
    DescribedModel(
        "hf:starcoder2",
        {
            "position": "rope",
            "act": "gelu relu2",
            "bias": "all none",
            "head": "tied untied",
            "keys": "all grouped",
            "dropout": "none attention all",
        },
        f"{HF} hidden_act={{act}} use_bias={{has_bias}} residual_dropout={{hidden_dropout}} "
        f"embedding_dropout={{hidden_dropout}} {ATTENTION_DROPOUT}",
    ),
    DescribedModel(
        "hf:gpt_neox",
        {
            "position": "rope",
            "act": "gelu relu2",
            "head": "untied tied",
            "rotary": "quarter",
            "dropout": "none attention all",
        },
        f"{CONFIG} {FFN} hidden_act={{act}} use_parallel_residual=false hidden_dropout={{hidden_dropout}} "
        f"{ATTENTION_DROPOUT} {CONFIG_SIZES}",
        behind="final_layer_norm",
    ),
    DescribedModel(
        "hf:nemotron",
        {
            "position": "rope",
            "norm": "LayerNorm LayerNorm1p",
            "act": "relu2 gelu",
            "bias": "none all",
            "head": "untied tied",
            "keys": "all grouped",
            "width": "equal free",
            "rotary": "half",
            "dropout": "none attention",
        },
        f"{HF} head_dim={{width}} hidden_act={{act}} attention_bias={{has_bias}} mlp_bias={{has_bias}} "
        f"{ATTENTION_DROPOUT}",
    ),
    DescribedModel(
        "hf:stablelm",
        {
            "position": "rope",
            "act": "swiglu geglu",
            "bias": "none qkv",
            "head": "untied tied",
            "keys": "all grouped",
            "rotary": "quarter",
            "dropout": "none attention all",
        },
        f"{HF} hidden_act={{other_act}} use_qkv_bias={{has_qkv_bias}} hidden_dropout={{hidden_dropout}} "
        f"{ATTENTION_DROPOUT}",
    ),
    DescribedModel(
        "mixtral",
        {
            "position": "rope",
            "norm": "RMSNorm",
            "act": "swiglu geglu",
            "bias": "none",
            "head": "untied tied",
            "keys": "all grouped",
            "width": "equal free",
            "experts": "all",
            "dropout": "none attention",
        },
        f"{WORDS} keys={{keys}} ffn={{expert_ffn}} experts={{experts}} top={{top}} {SIZES} theta={{theta}} "
        "balance={balance} head_dim={other_width} tie_word_embeddings={if_tied} hidden_act={other_act} "
        "attention_dropout={if_attention_dropout} rms_norm_eps={other_epsilon}",
        experts="experts",
    ),
    DescribedModel(
        "moe_gpt",
        {"head": "tied", "experts": "some all", "shared": "no plain"},
        f"{WORDS} ffn={{expert_ffn}} experts={{experts}} every={{every}} top={{top}} shared={{if_shared}} "
        f"capacity_percent={{capacity}} balance={{balance}} z={{z_loss}} {SIZES}",
        "blocks.*",
        experts="experts",
        norms="blocks.*.norm_*",
        ffn="blocks.*.ffn",
    ),
    DescribedModel(
        "hf:qwen3_moe",
        {
            "position": "rope",
            "norm": "RMSNorm",
            "act": "swiglu geglu",
            "bias": "none",
            "head": "untied tied",
            "keys": "all grouped",
            "qk_norm": "yes",
            "experts": "all first some",
            "router": "presoftmax softmax",
            "dropout": "none attention",
        },
        f"{HF} {EXPERT} num_experts={{experts}} norm_topk_prob={{is_normed}} mlp_only_layers={{dense_list}} {BALANCE} "
        f"{ATTENTION_DROPOUT}",
        experts="experts",
    ),
    DescribedModel(
        "hf:qwen2_moe",
        {
            "position": "rope",
            "norm": "RMSNorm",
            "act": "swiglu geglu",
            "bias": "none qkv",
            "head": "untied tied",
            "keys": "all grouped",
            "experts": "all first some",
            "shared": "gated",
            "router": "presoftmax softmax",
            "dropout": "none attention",
        },
        f"{HF} {EXPERT} num_experts={{experts}} norm_topk_prob={{is_normed}} mlp_only_layers={{dense_list}} "
        f"shared_expert_intermediate_size={{shared_ffn}} qkv_bias={{has_qkv_bias}} {BALANCE} {ATTENTION_DROPOUT}",
        experts="experts",
    ),
    DescribedModel(
        "hf:glm4_moe",
        {
            "position": "rope",
            "norm": "RMSNorm",
            "act": "swiglu geglu",
            "bias": "none qkv",
            "head": "untied tied",
            "keys": "all grouped",
            "qk_norm": "no yes",
            "experts": "first all none",
            "shared": "plain",
            "router": "sigmoid",
            "rotary": "half",
            "dropout": "none attention",
        },
        f"{HF} {EXPERT} {SIGMOID} {SCALED} use_qk_norm={{has_qk_norm}} attention_bias={{has_qkv_bias}} "
        f"{ATTENTION_DROPOUT}",
        experts="experts",
    ),
    DescribedModel(
        "hf:deepseek_v3",
        {
            "attention": "latent",
            "position": "rope",
            "norm": "RMSNorm",
            "act": "swiglu geglu",
            "bias": "none",
            "head": "untied tied",
            "width": "equal free",
            "qk_norm": "yes no",
            "experts": "first all none",
            "shared": "plain",
            "router": "sigmoid",
            "dropout": "none attention",
        },
        f"{CONFIG} num_key_value_heads={{heads}} {FFN} {EXPERT} {SIGMOID} {SCALED} {LATENT} {CONFIG_SIZES} "
        f"{ATTENTION_DROPOUT}",
        experts="experts",
    ),
    DescribedModel(
        "hf:deepseek_v2",
        {
            "attention": "latent",
            "position": "rope",
            "norm": "RMSNorm",
            "act": "swiglu geglu",
            "bias": "none",
            "head": "untied tied",
            "width": "equal free",
            "qk_norm": "yes no",
            "experts": "first all",
            "shared": "plain",
            "router": "presoftmax",
            "dropout": "none attention",
        },
        f"{CONFIG} num_key_value_heads={{heads}} {FFN} {EXPERT} n_shared_experts={{shared}} "
        f"n_routed_experts={{experts}} routed_scaling_factor={{router_scale}} "
        f"first_k_dense_replace={{dense_layers}} {LATENT} {CONFIG_SIZES} "
        f"{ATTENTION_DROPOUT}",
        experts="experts",
    ),
    DescribedModel(
        "hf:gpt_oss",
        {
            "attention": "sinks",
            "position": "yarn rope",
            "norm": "RMSNorm",
            "act": "clamped",
            "bias": "all",
            "head": "untied tied",
            "keys": "grouped all",
            "width": "equal free",
            "experts": "all",
            "dropout": "none attention",
        },
        f"{CONFIG} {KEYS} head_dim={{width}} intermediate_size={{expert_ffn}} num_local_experts={{experts}} "
        f"num_experts_per_tok={{top}} sliding_window={{window}} {CONFIG_SIZES} {ATTENTION_DROPOUT}",
        experts="experts",
        core='model["layers.*.self_attn."]',
    ),
)

BERT = DescribedModel(
    "hf:megatron-bert",
    {"head": "tied", "dropout": "none attention all"},
    f"{CONFIG} {FFN} max_position_embeddings={{positions}} vocab_size={{vocab}} seq={{seq}} batch={{batch}} "
    "hidden_dropout_prob={hidden_dropout} attention_probs_dropout_prob={attention_dropout}",
    "layer.*",
    norms="layer.*.ln",
    ffn="layer.*.intermediate",
    behind=None,
)
PAIRS = DescribedModel(
    "hf:mbart",
    {"head": "tied", "dropout": "none attention all"},
    "encoder_layers={layers} decoder_layers={decoder_layers} d_model={hidden} encoder_attention_heads={heads} "
    "decoder_attention_heads={heads} encoder_ffn_dim={ffn} decoder_ffn_dim={ffn} dropout={hidden_dropout} "
    f"{ATTENTION_DROPOUT} max_position_embeddings={{positions}} vocab_size={{vocab}} seq={{seq}} "
    "target={decoder_seq} batch={batch}",
    norms="layers.*.*layer_norm",
    ffn="layers.*.fc*",
    behind=None,
)
IMAGES = DescribedModel(
    "vit",
    {"head": "untied", "dropout": "none attention all"},
    f"{WORDS} image={{image}} patch={{patch}} labels={{classes}} batch={{batch}} dropout={{dropout}}",
    "layer.*",
    behind=None,
)
