"""The order in which each role runs its tasks."""
