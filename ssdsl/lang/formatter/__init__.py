"""From nodes to text: expressions, lines and the comments between them."""
