"""What the statements of a plan mean: one file for each, and `execute` that finds the right one."""
