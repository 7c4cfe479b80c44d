"""The command line: one file for each command. Nothing here loads torch before a command needs it."""
