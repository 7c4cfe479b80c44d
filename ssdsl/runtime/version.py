"""The versions of programs that this runtime runs."""

VERSION = 7  # of the files, and of what the roles' code calls here: a change of either is another version
