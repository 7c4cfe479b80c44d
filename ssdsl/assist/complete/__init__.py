"""Completion: where in the grammar a text ends, and the words and names that may follow."""
