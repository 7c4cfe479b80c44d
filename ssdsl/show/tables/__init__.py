"""Tables: a file for each."""
