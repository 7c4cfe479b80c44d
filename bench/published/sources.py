"""The models of `configs`, and where each config was published on the Hugging Face hub."""

SOURCES = {
    # dense language models
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B",
    "llama-3.1-70b": "meta-llama/Llama-3.1-70B",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B",
    "qwen3-8b": "Qwen/Qwen3-8B",
    "mistral-7b": "mistralai/Mistral-7B-v0.3",
    "gemma-2-9b": "google/gemma-2-9b",
    "phi-3-mini": "microsoft/Phi-3-mini-4k-instruct",
    "olmo-2-7b": "allenai/OLMo-2-1124-7B",
    "gpt-neox-20b": "EleutherAI/gpt-neox-20b",
    "falcon-40b": "tiiuae/falcon-40b",
    "starcoder2-7b": "bigcode/starcoder2-7b",
    # mixtures of experts, with latent attention in two
    "mixtral-8x7b": "mistralai/Mixtral-8x7B-v0.1",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "deepseek-v2-lite": "deepseek-ai/DeepSeek-V2-Lite",
    "deepseek-v3": "deepseek-ai/DeepSeek-V3",
    "gpt-oss-20b": "openai/gpt-oss-20b",
    # encoders, and encoders with decoders
    "bert-large": "google-bert/bert-large-uncased",
    "modernbert-base": "answerdotai/ModernBERT-base",
    "t5-xl": "google/flan-t5-xl",
    # vision
    "vit-large-16": "google/vit-large-patch16-224-in21k",
    "dinov2-giant": "facebook/dinov2-giant",
    "swin-large": "microsoft/swin-large-patch4-window12-384-in22k",
    "clip-vit-large": "openai/clip-vit-large-patch14",
    "siglip-so400m": "google/siglip-so400m-patch14-384",
    "gemma-3-12b": "google/gemma-3-12b-pt",
    # speech
    "whisper-large-v3": "openai/whisper-large-v3",
}
