"""Captures a module as calls: export, operators with rules, names of tensors, places in the user's code."""
