"""What a program starts from: weights, buffers and constants, from a file or made as recipes say."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch

from ..layout.cut import Piece
from .recipes import Recipes, read_recipes, write_recipes

WEIGHTS = "weights.pt"
RECIPES = "weights.json"


NAMES = "names.json"


class InitialState:
    """Tensors by name: those that are there, whole, and those that are made where they are needed.

    `names` are those of the model's `state_dict`, in order, each with the first name of the same tensor.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        recipes: Recipes | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self.tensors, self.recipes, self.names = tensors, recipes, dict(names or {})

    @classmethod
    def read(cls, folder: Path) -> "InitialState":
        """The state in a program's folder; tensors are mapped, not read. Raises OSError for a missing file."""
        tensors = torch.load(folder / WEIGHTS, mmap=True, weights_only=True)
        has_recipes = (folder / RECIPES).exists()
        names = json.loads((folder / NAMES).read_text())
        return cls(tensors, read_recipes(folder / RECIPES) if has_recipes else None, names)

    def write(self, folder: Path) -> None:
        """Writes what `read` reads."""
        torch.save(dict(self.tensors), folder / WEIGHTS)
        (folder / NAMES).write_text(json.dumps(self.names))
        if self.recipes is not None:
            write_recipes(self.recipes, folder / RECIPES)

    def copy(self) -> "InitialState":
        """The same state, to write to."""
        return InitialState({n: t.clone() for n, t in self.tensors.items()}, self.recipes, self.names)

    @property
    def aliases(self) -> dict[str, str]:
        """From the further names of tied weights to the first."""
        return {name: first for name, first in self.names.items() if name != first}

    def __contains__(self, name: str) -> bool:
        return name in self.tensors or (self.recipes is not None and name in self.recipes.weights)

    def __getitem__(self, name: str) -> torch.Tensor:
        """A tensor, whole."""
        if name in self.tensors or self.recipes is None:
            return self.tensors[name]
        return self.recipes.whole(name)

    def part(self, piece: Piece) -> torch.Tensor:
        """A rank's part of a tensor."""
        if piece.name in self.tensors or self.recipes is None:
            return piece.of(self.tensors[piece.name])
        return self.recipes.part(piece.name, piece.places())
