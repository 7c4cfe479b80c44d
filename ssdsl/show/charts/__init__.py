"""Charts: timelines and scatter plots, in the terminal, as HTML and as trace events."""
