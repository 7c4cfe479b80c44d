"""Where weights live, and how their gradients are completed."""
