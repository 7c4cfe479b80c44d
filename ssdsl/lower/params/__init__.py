"""Passes on parameters: the submesh and layout of each weight, and the completion of its gradient."""
