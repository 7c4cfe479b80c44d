"""Models of transformers by their type or config: `--model hf:llama,hidden_size=256`, `--model hf:config.json`.

Built from the config, with random weights; nothing is downloaded.
"""
