"""A program folder as data: its table, its initial state, and the places behind its lines."""
