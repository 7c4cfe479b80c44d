"""The meaning of the statements of a plan: one file for each kind, and `execute`, which finds the right one."""
