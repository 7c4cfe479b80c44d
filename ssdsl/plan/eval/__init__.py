"""Evaluates expressions of a plan: their values, the names they find, the operators they select."""
