"""The interactive session: a plan written line by line, with answers to statements, commands and completion."""
