"""One training step of a rank: forward, backward, gradients and weights."""
