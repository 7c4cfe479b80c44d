"""From a Schedule to a Program: one readable file per role, a table for the ranks, and the runtime beside them."""
