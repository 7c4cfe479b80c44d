"""A language for parallel training plans, and its compiler to torch.distributed programs."""

__version__ = "0.1.0"
