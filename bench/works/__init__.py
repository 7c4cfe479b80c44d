"""Statements with statements: each pair of what a plan can say, as one plan, on small models."""
