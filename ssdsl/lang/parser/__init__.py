"""From text to nodes: the layout of lines, the grammar's tree, and diagnostics for text that does not parse."""
