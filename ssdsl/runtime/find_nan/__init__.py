"""Finds where the numbers of a step stop being finite: in the batch, a weight, or the result of an operator."""
