"""A plan written line by line: statements that say what they did, commands, completion; the terminal is at its edge."""
