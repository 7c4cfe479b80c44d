"""Costs measured in recorded runs."""
