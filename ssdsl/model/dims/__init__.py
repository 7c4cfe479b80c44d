"""Finds the named dimensions of a model: rules of operators, followed through the captured calls."""
