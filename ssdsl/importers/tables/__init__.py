"""Tables of pipelines: a row for each rank, a cell for each action, as PyTorch's schedules write them."""
