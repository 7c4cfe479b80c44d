"""What an expression of a plan means: its value, the names it finds, the operators it selects."""
