"""Checks of roles: the order of tasks, messages, updates, and deadlock."""
