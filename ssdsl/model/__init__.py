"""From an nn.Module to a Graph: capture, the rules of operators, the dimensions they discover."""
