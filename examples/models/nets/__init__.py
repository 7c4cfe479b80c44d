"""The modules of the zoo that transformers does not have, in plain torch; each returns its loss."""
