"""The zoo's models of transformers, with random weights: our words for the fields of their configs, and named sizes.

The numbers of a size come from papers, except those of `tiny` and `small`; numbers that a comment calls ours are in no
paper.
"""

from typing import Any

from ssdsl.model.zoo.family import Architecture, sizes_of

# -- decoders ----------------------------------------------------------------------------------------------------------

NEXT_TOKEN = {"use_cache": False, "bos_token_id": None, "eos_token_id": None}  # all tokens are alike


GPT = Architecture(
    "gpt2",
    "causal",
    {
        "layers": "n_layer",
        "hidden": "n_embd",
        "heads": "n_head",
        "seq": "n_positions",
        "vocab": "vocab_size",
        "dropout": "attn_pdrop embd_pdrop resid_pdrop",
    },
    "{layers} layers, hidden {hidden}, {heads} heads, seq {seq}, vocab {vocab}",
    lambda **_: NEXT_TOKEN,
)
# Up to 13b, and 175b: GPT-3 (Brown et al. 2020, arXiv 2005.14165, table 2.1) with its sequence of 2048 and its batches
# in sequences. Three numbers differ: 2.6b (there 2.7B) is named as the Alpa paper does, 1.3b has 16 heads of the
# table's 128 because its 24 do not divide 2048, and 13b is 5120 wide because the table's 5140 is no multiple of 40
# heads. The others:
# - 1.7b to 1t: Narayanan et al. 2021, arXiv 2104.04473, table 1, with its batches; 39b, 530b and 1t are its 39.1, 529.6
#   and 1008.0 B. The batch of 22b is that of Korthikanti et al. 2022, arXiv 2205.05198, table 3, where 530b has 280.
# - 15b: of the SuperScaler paper (Lin et al. 2023, arXiv 2301.08984), which trains it and smaller ones at a sequence
#   of 16384: `-16k`. The batch of 256 is that of the same paper's Swin.
# - 1.5b: Qi et al. 2023, arXiv 2401.10241, table 3, with 24 micro-batches of 6. Its 22 layers and the two ends of a
#   pipeline of 8 weigh as three layers a stage.
# The vocabulary of 51200 is GPT-2's 50257 padded as Megatron-LM pads it, to a multiple of 128 x 8 devices.
GPT_SIZES = sizes_of(
    GPT,
    "layers hidden heads seq batch vocab",
    {
        "tiny": (4, 128, 4, 64, 8, 512),
        "small": (4, 256, 4, 128, 8, 1000),
        "350m": (24, 1024, 16, 2048, 256, 51200),
        "1.3b": (24, 2048, 16, 2048, 512, 51200),
        "1.3b-16k": (24, 2048, 16, 16384, 256, 51200),
        "1.5b": (22, 2304, 24, 1024, 144, 51200),
        "1.7b": (24, 2304, 24, 2048, 512, 51200),
        "2.6b": (32, 2560, 32, 2048, 512, 51200),
        "2.6b-16k": (32, 2560, 32, 16384, 256, 51200),
        "3.6b": (30, 3072, 32, 2048, 512, 51200),
        "6.7b": (32, 4096, 32, 2048, 1024, 51200),
        "6.7b-16k": (32, 4096, 32, 16384, 256, 51200),
        "7.5b": (36, 4096, 32, 2048, 512, 51200),
        "13b": (40, 5120, 40, 2048, 1024, 51200),
        "15b": (48, 5120, 40, 2048, 256, 51200),
        "15b-16k": (48, 5120, 40, 16384, 256, 51200),
        "18.4b": (40, 6144, 48, 2048, 1024, 51200),
        "22b": (48, 6144, 64, 2048, 4, 51200),
        "39b": (48, 8192, 64, 2048, 1536, 51200),
        "76.1b": (60, 10240, 80, 2048, 1792, 51200),
        "145.6b": (80, 12288, 96, 2048, 2304, 51200),
        "175b": (96, 12288, 96, 2048, 1536, 51200),
        "310.1b": (96, 16384, 128, 2048, 2160, 51200),
        "530b": (105, 20480, 128, 2048, 2520, 51200),
        "1t": (128, 25600, 160, 2048, 3072, 51200),
    },
    dropout=0.0,
)

ROTARY = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "keys": "num_key_value_heads",  # heads of keys and values
    "ffn": "intermediate_size",
    "seq": "max_position_embeddings",
    "vocab": "vocab_size",
}


def _rotary_problem(*, hidden: int, heads: int, **_: Any) -> str:
    multiple = f"hidden = {hidden} is no multiple of 2 x heads = {2 * heads}, which rotary embeddings need"
    return multiple if hidden % (2 * heads) else ""


def _rotary_config(*, theta: int, **_: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": float(theta)}, **NEXT_TOKEN}


LLAMA = Architecture(
    "llama",
    "causal",
    ROTARY,
    "{layers} layers, hidden {hidden}, {heads}-{keys} heads, seq {seq}",
    _rotary_config,
    _rotary_problem,
)
# 7b and 70b are Llama 2 (Touvron et al. 2023, arXiv 2307.09288: table 1; the widths of the released configs), with 8
# heads of keys and values for the 64 of 70b, a sequence of 4096 and a batch of 4 million tokens. 405b is Llama 3.1
# (Llama Team 2024, arXiv 2407.21783: table 3 and section 3.4.1), with a vocabulary of 128 256, a sequence of 8192 and a
# batch of 8 million tokens, as in the second of the three phases of its training.
LLAMA_SIZES = sizes_of(
    LLAMA,
    "layers hidden heads keys ffn seq batch vocab theta",
    {
        "tiny": (2, 64, 4, 2, 128, 32, 8, 256, 10_000),
        "7b": (32, 4096, 32, 32, 11008, 4096, 1024, 32000, 10_000),
        "70b": (80, 8192, 64, 8, 28672, 4096, 1024, 32000, 10_000),
        "405b": (126, 16384, 128, 8, 53248, 8192, 1024, 128256, 500_000),
    },
)


def _mixtral_problem(*, experts: int, top: int, **numbers: Any) -> str:
    return f"top = {top} is more than experts = {experts}" if top > experts else _rotary_problem(**numbers)


def _mixtral_config(*, balance: float, **numbers: Any) -> dict[str, Any]:
    return {"output_router_logits": balance > 0, **_rotary_config(**numbers)}  # which adds the load-balancing loss


MIXTRAL = Architecture(
    "mixtral",
    "causal",
    {**ROTARY, "experts": "num_local_experts", "top": "num_experts_per_tok", "balance": "router_aux_loss_coef"},
    "{layers} layers, hidden {hidden}, {top} of {experts} experts, seq {seq}",
    _mixtral_config,
    _mixtral_problem,
)
# 8x7b has the numbers of Jiang et al. 2024 (arXiv 2401.04088), table 1; sequence and batch are ours, 4 million tokens
# as for Llama 2. Every layer sends each token to `top` of its experts, without a capacity. The load-balancing loss is
# part of the loss, 0.02 times, as in the config that Mistral released.
# The router takes the largest probabilities by `topk`. torch does not define which of exactly equal ones that takes;
# on one kind of device it takes the same for equal rows, and the experts' results are summed, so their order does not
# matter.
MIXTRAL_SIZES = sizes_of(
    MIXTRAL,
    "layers hidden heads keys ffn experts top seq batch vocab",
    {
        "tiny": (2, 32, 4, 2, 64, 4, 2, 16, 8, 128),
        "8x7b": (32, 4096, 32, 8, 14336, 8, 2, 4096, 1024, 32000),
    },
    theta=1_000_000,
    balance=0.02,
)

# -- encoders ----------------------------------------------------------------------------------------------------------


BERT = Architecture(
    "bert",
    "masked",
    {
        "layers": "num_hidden_layers",
        "hidden": "hidden_size",
        "heads": "num_attention_heads",
        "seq": "max_position_embeddings",
        "vocab": "vocab_size",
        "dropout": "hidden_dropout_prob attention_probs_dropout_prob",
    },
    "{layers} layers, hidden {hidden}, {heads} heads, seq {seq}, vocab {vocab}",
    lambda hidden, **_: {"intermediate_size": 4 * hidden},
)
# BERT (Devlin et al. 2018, arXiv 1810.04805), with its vocabulary of 30522, its sequence of 512 and its batch of 256.
# The loss is that of masked words alone: the layer of the loss of the next sentence, hidden x (hidden + 1) parameters,
# is left out.
# - `24x1024` (BERT-Large) to `256x2048` are the layers x hidden of RaNNC's evaluation (Tanaka et al. 2021, arXiv
#   2103.16063), heads 64 wide; the largest has its 12.9 billion parameters.
# - `huge-32` and `huge-48` are BERT-Huge-32 and 48 of Galvatron (Miao et al. 2022, arXiv 2211.13878, table 1), with the
#   16 heads of its configs. Its 672 and 987 million are ours with that layer: 671.1 and 985.9 without.
ENLARGED = {
    f"{layers}x{hidden}": (layers, hidden, hidden // 64, 512, 256, 30522)
    for hidden in (1024, 1536, 2048)
    for layers in (24, 48, 96, 144, 192, 256)
}
BERT_SIZES = sizes_of(
    BERT,
    "layers hidden heads seq batch vocab",
    {
        "tiny": (2, 32, 4, 16, 8, 256),
        "huge-32": (32, 1280, 16, 512, 256, 30522),
        "huge-48": (48, 1280, 16, 512, 256, 30522),
        **ENLARGED,
    },
    dropout=0.0,
)

# -- encoder-decoders: `layers` of each; one embedding is that of source, target and scores ----------------------------

TRANSLATES = "{layers} + {layers} layers, hidden {hidden}, {heads} heads, seq {seq}, vocab {vocab}"


MBART = Architecture(
    "mbart",
    "pairs",
    {
        "layers": "encoder_layers decoder_layers",
        "hidden": "d_model",
        "heads": "encoder_attention_heads decoder_attention_heads",
        "seq": "max_position_embeddings",
        "vocab": "vocab_size",
        "dropout": "dropout",
    },
    TRANSLATES,
    lambda hidden, **_: {"encoder_ffn_dim": 4 * hidden, "decoder_ffn_dim": 4 * hidden, "use_cache": False},
)
# mBART (Liu et al. 2020, arXiv 2001.08210). 2b is the size of the SuperScaler paper's evaluation (Lin et al. 2023,
# arXiv 2301.08984): 8 + 8 layers, hidden 2048, 16 heads, a sequence of 1024 and a vocabulary of 500 000, which 32
# devices divide: half of the weights are the one embedding. The feed-forward is 4 x hidden wide, as in the released
# mBART. The batch of 256 is ours.
MBART_SIZES = sizes_of(
    MBART,
    "layers hidden heads seq batch vocab",
    {"tiny": (2, 32, 4, 16, 8, 256), "2b": (8, 2048, 16, 1024, 256, 500_000)},
    dropout=0.0,
)


T5 = Architecture(
    "t5",
    "pairs",
    {
        "layers": "num_layers",
        "hidden": "d_model",
        "heads": "num_heads",
        "seq": "",
        "vocab": "vocab_size",
        "dropout": "dropout_rate",
    },
    TRANSLATES,
    lambda hidden, heads, **_: {"d_kv": hidden // heads, "d_ff": 4 * hidden, "use_cache": False},
)
# T5 (Raffel et al. 2020, arXiv 1910.10683) in the sizes of the SuperScaler paper's evaluation (Lin et al. 2023, arXiv
# 2301.08984): layers of encoder and of decoder, hidden, heads and vocabulary are 24/2048/32/512k, 32/3072/48/1024k,
# 32/4096/64/1536k and 32/6144/96/2048k, with a sequence of 1024. k is a thousand, so 32 devices divide all
# vocabularies. Heads are 64 wide, the feed-forward is 4 x hidden with ReLU, as in the first T5. The batch of 256 is
# ours.
# In fp16 transformers checks after each layer whether any number of the batch is infinite. Micro-batches of a pipeline
# cannot know this of each other, so pipelines need fp32 or bf16.
T5_SIZES = sizes_of(
    T5,
    "layers hidden heads seq batch vocab",
    {
        "tiny": (2, 32, 4, 16, 8, 256),
        "3.9b": (24, 2048, 32, 1024, 256, 512_000),
        "12b": (32, 3072, 48, 1024, 256, 1_024_000),
        "21b": (32, 4096, 64, 1024, 256, 1_536_000),
        "46b": (32, 6144, 96, 1024, 256, 2_048_000),
    },
    dropout=0.0,
)

# -- images: `depths` and `heads` are per stage, `hidden` is the first's and doubles with each -------------------------

PATCH, CHANNELS = 4, 3


def _swin_problem(
    *, depths: tuple[int, ...], hidden: int, heads: tuple[int, ...], image: int, window: int, **_: Any
) -> str:
    if len(depths) != len(heads):
        return f"depths has {len(depths)} stages and heads has {len(heads)}"
    for stage, count in enumerate(heads):
        if (hidden << stage) % count:
            return f"hidden = {hidden << stage} of stage {stage} is no multiple of heads = {count}"
    last_patch = PATCH << (len(depths) - 1)
    if image % last_patch:
        return f"image = {image} is no multiple of {last_patch}, the pixels of the last stage's patches"
    patches = image // last_patch
    if window > patches:
        return f"window = {window} is larger than the last stage, which has {patches} x {patches} patches"
    return ""


SWIN = Architecture(
    "swin",
    "image",
    {
        "depths": "depths",
        "hidden": "embed_dim",
        "heads": "num_heads",
        "image": "image_size",
        "window": "window_size",
        "labels": "num_labels",
    },
    "{depths} layers, hidden {hidden}, {heads} heads, {image} px, window {window}",
    lambda **_: {"patch_size": PATCH, "num_channels": CHANNELS, "drop_path_rate": 0.0},
    _swin_problem,
)
# Swin Transformer (Liu et al. 2021, arXiv 2103.14030). 1.8b to 27b are the sizes of the SuperScaler paper's evaluation
# (Lin et al. 2023, arXiv 2301.08984): all layers but six in the third stage, widths and heads doubling with each.
SWIN_SIZES = sizes_of(
    SWIN,
    "depths hidden heads image window batch labels",
    {
        "tiny": ((2, 2), 64, (4, 8), 64, 4, 8, 16),
        "small": ((2, 2, 2, 2), 32, (4, 8, 16, 32), 128, 4, 8, 16),
        "1.8b": ((2, 2, 26, 2), 512, (16, 32, 64, 128), 1536, 48, 256, 1000),
        "5b": ((2, 2, 34, 2), 768, (24, 48, 96, 192), 1536, 48, 256, 1000),
        "10b": ((2, 2, 42, 2), 1024, (32, 64, 128, 256), 1536, 48, 256, 1000),
        "27b": ((2, 2, 50, 2), 1536, (32, 64, 128, 256), 1536, 48, 256, 1000),
    },
)


VIT = Architecture(
    "vit",
    "image",
    {
        "layers": "num_hidden_layers",
        "hidden": "hidden_size",
        "heads": "num_attention_heads",
        "image": "image_size",
        "patch": "patch_size",
        "labels": "num_labels",
        "dropout": "hidden_dropout_prob attention_probs_dropout_prob",
    },
    "{layers} layers, hidden {hidden}, {heads} heads, {image} px, patch {patch}",
    lambda hidden, **_: {"intermediate_size": 4 * hidden, "num_channels": CHANNELS},
)
# Vision Transformer (Dosovitskiy et al. 2020, arXiv 2010.11929). `huge-32` and `huge-48` are ViT-Huge-32 and 48 of
# Galvatron (Miao et al. 2022, arXiv 2211.13878, table 1: 632 and 947 million parameters), with patches of 16 pixels and
# the 16 heads of its configs. The batch of 256 is ours.
VIT_SIZES = sizes_of(
    VIT,
    "layers hidden heads image patch batch labels",
    {
        "tiny": (2, 32, 4, 32, 8, 8, 16),
        "huge-32": (32, 1280, 16, 224, 16, 256, 1000),
        "huge-48": (48, 1280, 16, 224, 16, 256, 1000),
    },
    dropout=0.0,
)
