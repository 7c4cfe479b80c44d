"""Loads batches: the samples of each rank, fetched, collated and cut."""
