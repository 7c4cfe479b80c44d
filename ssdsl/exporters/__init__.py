"""Plans in the forms of other tools."""
