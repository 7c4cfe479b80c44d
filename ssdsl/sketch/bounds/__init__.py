"""Lower bounds on the cost of a setting, before it is simulated."""
