"""From text to nodes: the layout of lines, the grammar's tree, and what is said where it does not fit."""
