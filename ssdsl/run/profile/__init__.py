"""Costs from recorded runs."""
