"""Diagnostics of a plan's meaning: E02xx, one file per subject."""
