"""The command line: one command, one file. Nothing here loads torch before a command needs it."""
