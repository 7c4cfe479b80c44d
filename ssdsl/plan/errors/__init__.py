"""What can be wrong with the meaning of a plan: E02xx, one file per subject."""
