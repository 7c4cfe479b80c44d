"""The memory of an operator's tensors, as it was observed at capture: layouts, aliases, tensors kept for backward."""
