"""Loads pretrained weights whose files have other names than the module, or a tensor per expert, through transformers.

A Hugging Face folder has a `config.json` that names the model's class. For example, Mixtral's files have `w1`, `w2` and
`w3` of each expert, and the module has two tensors for all experts. So that class loads the folder, and its state is
taken.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch


def converted(folder: Path, names: Iterable[str]) -> dict[str, torch.Tensor] | None:
    """The weights under the module's names; None if the files already have these `names`, or the class is unknown.

    Weights that the files lack are left out. Raises the errors of transformers.
    """
    kind = _class_of(folder)
    if kind is None:
        return None
    with torch.device("meta"):
        own = kind(kind.config_class.from_pretrained(folder)).state_dict()
    if own.keys() >= set(names):
        return None
    module, found = kind.from_pretrained(folder, dtype="auto", local_files_only=True, output_loading_info=True)
    state: dict[str, torch.Tensor] = module.state_dict()
    return {name: tensor for name, tensor in state.items() if name not in found["missing_keys"]}


def _class_of(folder: Path) -> Any:
    """The class that the folder's config names, if transformers is installed and has it."""
    file = folder / "config.json"
    try:
        import transformers

        named = json.loads(file.read_text())["architectures"][0]
    except (ImportError, OSError, ValueError, LookupError, TypeError):
        return None
    return getattr(transformers, str(named), None)
