"""Training: the engine that a user's loop drives."""
