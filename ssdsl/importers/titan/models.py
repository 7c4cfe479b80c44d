"""The models that torchtitan names, as `--model` says them.

The numbers are those of `torchtitan/models/*/__init__.py`; those of `llama2`, and of models by other names, of the
versions that had them (github.com/pytorch/torchtitan, BSD-3-Clause).
"""

import re
from collections.abc import Mapping
from typing import Any

from ssdsl.importers.widths import ATTENTION, Net
from ssdsl.model.zoo.architectures import LLAMA_SIZES
from ssdsl.record import Record


class TitanFamily(Record):
    """A model of torchtitan: `model` is what `--model` begins with, `fields` its options, a column of `flavors` each.

    `products` are the names of a layer's linear modules in the order in which it calls them; `attention` is the
    operator between them, None if it is several. `different` says how the model differs from torchtitan's, "" for not
    at all.
    """

    model: str
    fields: str
    flavors: Mapping[str, tuple[Any, ...]]
    products: str
    layers: str = "layers.*"
    experts: str | None = None
    different: str = ""
    attention: str | None = ATTENTION

    def numbers(self, flavor: str) -> dict[str, Any]:
        """The options of a flavor."""
        return dict(zip(self.fields.split(), self.flavors[flavor], strict=True))


LLAMA_FIELDS = "layers hidden heads keys ffn vocab theta"
LLAMA_PRODUCTS = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj"
LLAMA2 = TitanFamily(
    "llama",
    LLAMA_FIELDS,
    {
        "debugmodel": (8, 256, 16, 16, 768, 32000, 10_000),
        "271M": (16, 1024, 8, 8, 2816, 32000, 10_000),
        "1B": (18, 2048, 16, 16, 5632, 32000, 10_000),
        "7B": (32, 4096, 32, 32, 11008, 32000, 10_000),
        "13B": (40, 5120, 40, 40, 13824, 32000, 10_000),
        "26B": (80, 5120, 40, 40, 13824, 32000, 10_000),
        "70B": (80, 8192, 64, 8, 28672, 32000, 10_000),
    },
    LLAMA_PRODUCTS,
)
LLAMA3 = TitanFamily(
    "llama",
    LLAMA_FIELDS,
    {
        "debugmodel": (6, 256, 16, 16, 768, 2048, 500_000),
        "1B": (16, 2048, 32, 8, 8192, 128256, 500_000),
        "3B": (28, 3072, 24, 8, 8192, 128256, 500_000),
        "8B": (32, 4096, 32, 8, 14336, 128256, 500_000),
        "70B": (80, 8192, 64, 8, 28672, 128256, 500_000),
        "405B": (126, 16384, 128, 8, 53248, 128256, 500_000),
    },
    LLAMA_PRODUCTS,
)
QWEN3_FIELDS = "num_hidden_layers hidden_size num_attention_heads num_key_value_heads head_dim intermediate_size"
QWEN3 = TitanFamily(
    "hf:qwen3",
    f"{QWEN3_FIELDS} tie_word_embeddings vocab_size",
    {
        "debugmodel": (8, 256, 16, 8, 128, 3072, True, 2048),
        "0.6B": (28, 1024, 16, 8, 128, 3072, True, 151936),
        "1.7B": (28, 2048, 16, 8, 128, 6144, True, 151936),
        "4B": (36, 2560, 32, 8, 128, 9728, True, 151936),
        "8B": (36, 4096, 32, 8, 128, 12288, False, 151936),
        "14B": (40, 5120, 40, 8, 128, 17408, False, 151936),
        "32B": (64, 5120, 64, 8, 128, 25600, False, 151936),
    },
    LLAMA_PRODUCTS,
)
QWEN3_MOE = TitanFamily(
    "hf:qwen3_moe",
    "num_hidden_layers hidden_size num_attention_heads num_key_value_heads moe_intermediate_size num_experts "
    "num_experts_per_tok vocab_size",
    {
        "debugmodel_moe": (8, 256, 16, 8, 768, 64, 8, 2048),
        "30B-A3B": (48, 2048, 32, 4, 768, 128, 8, 151936),
        "235B-A22B": (94, 4096, 64, 4, 1536, 128, 8, 151936),
    },
    "q_proj k_proj v_proj o_proj",
    experts="layers.*.mlp.experts",
    different="its heads are hidden / heads wide, torchtitan's 128",
)
DEEPSEEK_V3 = TitanFamily(
    "hf:deepseek_v3",
    "num_hidden_layers first_k_dense_replace hidden_size num_attention_heads num_key_value_heads intermediate_size "
    "moe_intermediate_size n_routed_experts n_shared_experts num_experts_per_tok n_group topk_group q_lora_rank "
    "kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim vocab_size",
    {
        "debugmodel": (6, 1, 256, 16, 16, 1024, 256, 8, 2, 3, 1, 1, None, 512, 128, 64, 128, 2048),
        "16B": (27, 1, 2048, 16, 16, 10944, 1408, 64, 2, 6, 1, 1, None, 512, 128, 64, 128, 102400),
        "236B": (60, 1, 5120, 128, 128, 12288, 1536, 160, 2, 6, 8, 3, 1536, 512, 128, 64, 128, 102400),
        "671B": (61, 3, 7168, 128, 128, 18432, 2048, 256, 1, 8, 8, 4, 1536, 512, 128, 64, 128, 129280),
    },
    "q_proj q_a_proj q_b_proj kv_a_proj_with_mqa kv_b_proj o_proj gate_proj up_proj down_proj",
    experts="layers.*.mlp.experts",
)
GPT_OSS = TitanFamily(
    "hf:gpt_oss",
    "num_hidden_layers hidden_size num_attention_heads num_key_value_heads head_dim intermediate_size "
    "num_local_experts num_experts_per_tok vocab_size",
    {
        "debugmodel": (4, 256, 64, 8, 64, 2880, 8, 4, 201088),
        "20b": (24, 2880, 64, 8, 64, 2880, 32, 4, 201088),
        "120b": (36, 2880, 64, 8, 64, 2880, 128, 4, 201088),
    },
    "q_proj k_proj v_proj o_proj",
    experts="layers.*.mlp.experts",
    attention=None,
)
LLAMA4 = TitanFamily(
    "hf:llama4_text",
    "num_hidden_layers hidden_size num_attention_heads num_key_value_heads head_dim intermediate_size "
    "intermediate_size_mlp num_local_experts num_experts_per_tok interleave_moe_layer_step vocab_size",
    {
        "debugmodel": (6, 256, 16, 16, 16, 512, 768, 8, 1, 2, 2048),
        "17bx16e": (48, 5120, 40, 8, 128, 8192, 16384, 16, 1, 1, 202048),
        "17bx128e": (48, 5120, 40, 8, 128, 8192, 16384, 128, 1, 2, 202048),
    },
    LLAMA_PRODUCTS,
    experts="layers.*.feed_forward.experts",
)
FAMILIES: Mapping[str, tuple[TitanFamily, ...]] = {
    "llama": (LLAMA2,),
    "llama2": (LLAMA2,),
    "llama3": (LLAMA3,),
    "llama4": (LLAMA4,),
    "qwen3": (QWEN3, QWEN3_MOE),
    "deepseek_v3": (DEEPSEEK_V3,),
    "gpt_oss": (GPT_OSS,),
}
TIED = ("1B", "3B")  # of Llama 3.2, which torchtitan has since 0.3
SAME = re.compile(r"^.*\.|_(?:ft|simple_fsdp|auto_?parallel|compiler_toolkit)$")  # experiments with a model of the core
VARIANT = re.compile(r"_(?:flex|varlen|irope|flex_attn|varlen_attn|dsa)$")  # a flavor with another kernel or mask


class NamedModel(Record):
    """A model that torchtitan names: the family and the flavor here, and what of it the model here lacks, or ""."""

    family: TitanFamily
    flavor: str
    different: str

    @property
    def layers(self) -> int:
        """The number of its layers."""
        return int(next(self.numbers[word] for word in ("layers", "num_hidden_layers") if word in self.numbers))

    @property
    def numbers(self) -> dict[str, Any]:
        """Its options."""
        numbers = self.family.numbers(self.flavor)
        return {**numbers, "tie_word_embeddings": True} if self.family is LLAMA3 and self.flavor in TIED else numbers

    def net(self, seq: int, batch: int) -> Net:
        """The model with sequences and batches of a size."""
        numbers = {**self.numbers, "seq": seq, "batch": batch}
        name = self.family.model
        if ":" not in name:  # of the zoo: the size that differs in the fewest numbers
            sizes = {size: LLAMA_SIZES[size].numbers for size in LLAMA_SIZES}
            base = min(sizes, key=lambda size: _distance(sizes[size], numbers))
            numbers = {word: n for word, n in numbers.items() if sizes[base].get(word) != n}
            name = f"{name}:{base}"
        options = "".join(f",{word}={_option(value)}" for word, value in numbers.items())
        return Net(f"{name}{options}", self.family.layers, self.family.experts)

    def recomputed(self) -> str:
        """The operators of a layer that a selective checkpoint of operators computes again: all but attention and each
        second product, of which it keeps the first, the third and so on."""
        words = self.family.products.split()
        if self.family is DEEPSEEK_V3:  # queries of one product, or of two
            gone = {"q_proj"} if self.numbers["q_lora_rank"] else {"q_a_proj", "q_b_proj"}
            words = [word for word in words if word not in gone]
        attention = [self.family.attention] if self.family.attention else []
        kept = [*attention, *(f'model["{self.family.layers}*.{word}"]' for word in words[::2])]
        return f'model["{self.family.layers}"] - ({" | ".join(kept)})'


def named(name: str, flavor: str) -> NamedModel | None:
    """The model of torchtitan's that has this name and flavor; None if it is not known here."""
    for family in FAMILIES.get(SAME.sub("", SAME.sub("", name)), ()):
        for known in family.flavors:
            plain = VARIANT.sub("", VARIANT.sub("", flavor))
            if known.lower() == plain.lower():
                masks = "torchtitan's masks may be other than causal" if plain != flavor else ""
                return NamedModel(family, known, "; ".join(filter(None, (family.different, masks))))
    return None


def flavors(name: str) -> list[str]:
    """The flavors of a model that are known here."""
    return [flavor for family in FAMILIES.get(SAME.sub("", name), ()) for flavor in family.flavors]


def _distance(size: Mapping[str, Any], numbers: Mapping[str, Any]) -> tuple[bool, int]:
    """How far a size is from some numbers: whether it is as wide, then how many of the numbers it does not have."""
    return size["hidden"] != numbers["hidden"], sum(size.get(word) != n for word, n in numbers.items())


def _option(value: Any) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
