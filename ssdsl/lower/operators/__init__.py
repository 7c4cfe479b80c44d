"""How each operator is split, and which layouts follow for its tensors."""
