"""The intermediate representation: typed programs, their text, and a check of their references."""
