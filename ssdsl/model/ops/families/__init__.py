"""The rows of operators, a file for each family."""
