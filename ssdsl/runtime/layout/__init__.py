"""Parts of tensors and how they travel: cuts, collectives, transfers."""
