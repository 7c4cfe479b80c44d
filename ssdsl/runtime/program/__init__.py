"""A program folder as data: its table, its initial state, and the plan lines behind its code."""
