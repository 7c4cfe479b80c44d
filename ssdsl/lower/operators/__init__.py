"""Passes on operators: the splits of each, and the layouts that follow for its tensors."""
