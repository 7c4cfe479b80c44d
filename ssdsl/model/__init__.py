"""Turns an nn.Module into a Graph: capture, the rules of operators, the dimensions that follow from them."""
