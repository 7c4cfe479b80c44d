"""How right the simulator is: rows of what was measured, here or elsewhere, beside what it predicts."""
