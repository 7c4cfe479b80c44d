"""Parts of tensors, and their communication: cuts, collectives, transfers."""
