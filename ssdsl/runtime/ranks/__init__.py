"""Ranks: their places in meshes, their groups, and how they exchange tensors and small messages."""
