"""A shell script, followed without running it: its words, its statements, their values, and its commands."""
